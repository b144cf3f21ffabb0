# SPDX-License-Identifier: Apache-2.0
"""Gemma 2."""

import jax

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, GatedFeedForward, Repeat, RMSNorm, pattern_of
from dovetail.ops import gated

from ..hf import (
    GATED,
    INVERSE_ROOT,
    ROOT,
    Fixed,
    HeadDim,
    Layers,
    Published,
    Rope,
    Value,
    WindowTypes,
    alternating,
    tied,
)
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, GATED_FFN, NORMS, OUT_NORMS_EPS, SANDWICH_NORMS, sizes


def gemma2(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_dim: int,
    query_scale: float,
    window: int = 4096,
) -> CausalLM.Config:
    """Gemma 2: norms before and after, a window in every other layer, capped scores and logits, tied embedding.

    Reference: Gemma Team, Gemma 2: Improving Open Language Models at a Practical Size, 2024 (arXiv:2408.00118).

    Args:
        query_scale: scores are divided by its square root.
        window: of every other layer, from the first on.
    """
    norm = RMSNorm.Config(offset=1.0)
    attention = Attention.Config(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=query_scale**-0.5, soft_cap=50.0
    )
    block = Block.Config(
        mixer_norm=norm,
        mixer=attention,
        mixer_out_norm=norm,
        ffn_norm=norm,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim, activation=config_for(gated, jax.nn.gelu)),
        ffn_out_norm=norm,
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        embedding_scale=dim**0.5,
        stack=Repeat.Config(layer=pattern_of(block, {"mixer.window": (window, None)}), num_layers=num_layers),
        norm=norm,
        head=None,
        logit_cap=30.0,
    )


GEMMA2 = Published(
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    template="gemma2-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=4),
        Value("hidden_size", "embedding_scale", codec=ROOT),
        HeadDim(default=256),
        Value("query_pre_attn_scalar", "layer.mixer.scale", default=256, codec=INVERSE_ROOT),
        Value("attn_logit_softcapping", "layer.mixer.soft_cap", default=50.0, null=None),
        Value("final_logit_softcapping", "logit_cap", default=30.0, null=None),
        Value("rms_norm_eps", *NORMS, *OUT_NORMS_EPS, default=1e-6),
        Value("hidden_activation", "layer.ffn.activation", default="gelu_pytorch_tanh", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        WindowTypes(alternating(2, 1), default=4096),
        Rope(),
        Fixed("use_bidirectional_attention", None, False),
        tied(default=True),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *SANDWICH_NORMS,
        *GATED_FFN,
    ),
    ignored={
        "hidden_act": "hidden_activation is used",
        "cache_implementation": "how transformers generates",
    },
)
