# SPDX-License-Identifier: Apache-2.0
"""Gemma 3, the decoder for text."""

import jax

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.nn import (
    Attention,
    Block,
    GatedFeedForward,
    LinearRoPE,
    Repeat,
    RMSNorm,
    RoPE,
    pattern_of,
)
from dovetail.ops import gated

from ..hf import (
    GATED,
    INVERSE_ROOT,
    ROOT,
    Fixed,
    HeadDim,
    Layers,
    Published,
    RopeByType,
    Value,
    WindowTypes,
    every,
    tied,
)
from ._common import (
    ATTENTION,
    ATTENTION_BIASES,
    ENDS,
    GATED_FFN,
    NORMS,
    OUT_NORMS_EPS,
    QK_EPS,
    QK_NORMS,
    SANDWICH_NORMS,
    sizes,
)


def gemma3(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_dim: int,
    query_scale: float,
    window: int,
    rope_factor: float | None = None,
    global_every: int = 6,
) -> CausalLM.Config:
    """Gemma 3: norms before and after, normed queries and keys, a window in most layers, tied embedding.

    Reference: Gemma Team, Gemma 3 Technical Report, 2025 (arXiv:2503.19786).

    Args:
        query_scale: scores are divided by its square root.
        window: of all layers but each `global_every`-th.
        rope_factor: positions of layers without a window are divided by it.
    """
    norm = RMSNorm.Config(offset=1.0)
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=query_scale**-0.5,
        query_norm=norm,
        key_norm=norm,
    )
    block = Block.Config(
        mixer_norm=norm,
        mixer=attention,
        mixer_out_norm=norm,
        ffn_norm=norm,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim, activation=config_for(gated, jax.nn.gelu)),
        ffn_out_norm=norm,
    )
    near, far = RoPE.Config(theta=10_000.0), RoPE.Config(theta=1_000_000.0)
    if rope_factor is not None:
        far = LinearRoPE.Config(theta=1_000_000.0, factor=rope_factor)
    local = global_every - 1
    changes = {"mixer.window": (window,) * local + (None,), "mixer.rotary": (near,) * local + (far,)}
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        embedding_scale=dim**0.5,
        stack=Repeat.Config(layer=pattern_of(block, changes), num_layers=num_layers),
        norm=norm,
        head=None,
    )


GEMMA3 = Published(
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    template="gemma3-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=4),
        Value("hidden_size", "embedding_scale", codec=ROOT),
        HeadDim(default=256),
        Value("query_pre_attn_scalar", "layer.mixer.scale", default=256, codec=INVERSE_ROOT),
        Value("attn_logit_softcapping", "layer.mixer.soft_cap", default=None, null=None),
        Value("final_logit_softcapping", "logit_cap", default=None, null=None),
        Value("rms_norm_eps", *NORMS, *OUT_NORMS_EPS, *QK_EPS, default=1e-6),
        Value("hidden_activation", "layer.ffn.activation", default="gelu_pytorch_tanh", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        WindowTypes(every("sliding_window_pattern|_sliding_window_pattern", 6), default=4096),
        RopeByType(sliding_name="rope_local_base_freq", sliding=10_000.0, full=1_000_000.0),
        Fixed("use_bidirectional_attention", False, None),
        tied(default=True),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *QK_NORMS,
        *SANDWICH_NORMS,
        *GATED_FFN,
    ),
    ignored={
        "cache_implementation": "how transformers generates",
        "sliding_window_pattern": "layer_types says it",
        "_sliding_window_pattern": "layer_types says it",
        "rope_local_base_freq": "rope_parameters says it",
    },
)
