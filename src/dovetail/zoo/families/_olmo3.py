# SPDX-License-Identifier: Apache-2.0
"""Olmo 3."""

from dovetail.config import config_for, modify
from dovetail.models import CausalLM
from dovetail.module import normal
from dovetail.nn import Attention, Block, DenseLinear, GatedFeedForward, Repeat, RMSNorm, RoPE, YaRN, pattern_of

from ..hf import GATED, HeadDim, Layers, Published, RopeByType, Value, WindowTypes, alternating, tied
from ._common import (
    ATTENTION,
    ATTENTION_BIASES,
    ENDS,
    GATED_FFN,
    OUT_NORMS,
    OUT_NORMS_EPS,
    QK_EPS,
    SIZES,
    WIDE_QK_NORMS,
)


def olmo3(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    window: int = 4096,
    rope_factor: float | None = 8.0,
    theta: float = 500_000.0,
    global_every: int = 4,
) -> CausalLM.Config:
    """Olmo 3: as OLMo 2, with a window in all layers but each `global_every`-th, where alone positions are stretched.

    Reference: Olmo Team, Olmo 3, 2025 (arXiv:2512.13961).

    Args:
        rope_factor: of how much longer sequences have become than 8192.
    """
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        query_norm=RMSNorm.Config(),
        key_norm=RMSNorm.Config(),
        norm_over="all_heads",
    )
    block = Block.Config(
        mixer_norm=None,
        mixer=attention,
        mixer_out_norm=RMSNorm.Config(),
        ffn_norm=None,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim),
        ffn_out_norm=RMSNorm.Config(),
    )
    near = far = RoPE.Config(theta=theta)
    if rope_factor is not None:
        far = YaRN.Config(theta=theta, factor=rope_factor, original_length=8192)
    local = global_every - 1
    changes = {"mixer.window": (window,) * local + (None,), "mixer.rotary": (near,) * local + (far,)}
    stack = Repeat.Config(layer=pattern_of(block, changes), num_layers=num_layers)
    model = CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=stack, z_loss=1e-5)
    return modify(DenseLinear.Config, lambda linear: linear.set(init=config_for(normal, stddev=0.02)))(model)


OLMO3 = Published(
    architecture="Olmo3ForCausalLM",
    model_type="olmo3",
    template="olmo3-tiny",
    fields=(
        Layers(),
        *SIZES,
        HeadDim(),
        Value("rms_norm_eps", "norm.eps", *OUT_NORMS_EPS, *QK_EPS, default=1e-5),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        WindowTypes(alternating(4, 3), default=4096),
        RopeByType(sliding=500_000.0, full=500_000.0),
        tied(),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *WIDE_QK_NORMS,
        *OUT_NORMS,
        *GATED_FFN,
    ),
)
