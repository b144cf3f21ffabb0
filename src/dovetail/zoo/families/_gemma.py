# SPDX-License-Identifier: Apache-2.0
"""Gemma 1."""

import jax

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, GatedFeedForward, Repeat, RMSNorm
from dovetail.ops import gated

from ..hf import GATED_TANH, ROOT, Fixed, HeadDim, Layers, Published, Rope, Value, tied
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, GATED_FFN, NORMS, PRE_NORMS, sizes


def gemma(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_dim: int,
) -> CausalLM.Config:
    """Gemma: RMSNorm counted from 1, wide heads, feed-forward gated by gelu, scaled and tied embedding.

    Reference: Gemma Team, Gemma: Open Models Based on Gemini Research and Technology, 2024 (arXiv:2403.08295).
    """
    norm = RMSNorm.Config(offset=1.0)
    block = Block.Config(
        mixer_norm=norm,
        mixer=Attention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim),
        ffn_norm=norm,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim, activation=config_for(gated, jax.nn.gelu)),
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        embedding_scale=dim**0.5,
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        norm=norm,
        head=None,
    )


GEMMA = Published(
    architecture="GemmaForCausalLM",
    model_type="gemma",
    template="gemma-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=16),
        Value("hidden_size", "embedding_scale", codec=ROOT),
        HeadDim(default=256),
        Value("rms_norm_eps", *NORMS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", default="gelu_pytorch_tanh", codec=GATED_TANH),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        Rope(),
        Fixed("use_bidirectional_attention", None, False),
        tied(default=True),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *PRE_NORMS,
        *GATED_FFN,
    ),
    ignored={
        "hidden_activation": "transformers uses hidden_act",
    },
)
