# SPDX-License-Identifier: Apache-2.0
"""Phi-3 and Phi-4."""

from collections.abc import Sequence

from dovetail.models import CausalLM
from dovetail.nn import (
    Attention,
    Block,
    DenseLinear,
    GatedFeedForward,
    LongRoPE,
    PartialRotary,
    Repeat,
    RMSNorm,
    RoPE,
)

from ..hf import GATED, Fixed, HeadDim, Layers, Published, Rope, Value, Window, tied
from ._common import ENDS, NORMS, PRE_NORMS, SIZES


def phi3(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    window: int | None = None,
    theta: float = 10_000.0,
    rope_factor: float | None = None,
    short: Sequence[float] = (),
    long: Sequence[float] = (),
    rotated: float = 1.0,
    tied: bool = False,
) -> CausalLM.Config:
    """Phi-3: RMSNorm, rotary positions, gated feed-forward, no biases; some sizes have a window, or LongRoPE.

    References: Abdin et al., Phi-3 Technical Report, 2024 (arXiv:2404.14219); Phi-4 Technical Report, 2024
    (arXiv:2412.08905); Phi-4-Mini Technical Report, 2025 (arXiv:2503.01743).

    Args:
        rope_factor: of how much longer sequences have become than 4096.
        short, long: what frequencies are divided by, up to that length and beyond it.
        rotated: the share of a head that positions turn.
    """
    norm, rotary = RMSNorm.Config(eps=1e-5), RoPE.Config(theta=theta)
    if rope_factor is not None:
        rotary = LongRoPE.Config(
            theta=theta, factor=rope_factor, original_length=4096, short=tuple(short), long=tuple(long)
        )
    if rotated < 1:
        rotary = PartialRotary.Config(fraction=rotated, inner=rotary)
    attention = Attention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads, window=window, rotary=rotary)
    block = Block.Config(
        mixer_norm=norm, mixer=attention, ffn_norm=norm, ffn=GatedFeedForward.Config(hidden_dim=hidden_dim)
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        norm=norm,
        head=None if tied else DenseLinear.Config(),
    )


PHI3 = Published(
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    template="phi3-tiny",
    fields=(
        Layers(),
        *SIZES,
        HeadDim(),
        Value("rms_norm_eps", *NORMS, default=1e-5),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Window(),
        Rope(partial=1.0, original_outside=True, means={"yarn": "longrope"}),
        Fixed("attention_bias", False),
        Fixed("lm_head_bias", False),
        tied(),
    ),
    weights=(
        *ENDS,
        *PRE_NORMS,
        "model.layers.{l}.self_attn.qkv_proj.weight: (h k + g k + g k) d = "
        "layer.mixer.query.weight: d h k, layer.mixer.key.weight: d g k, layer.mixer.value.weight: d g k",
        "model.layers.{l}.self_attn.o_proj.weight: d (h k) = layer.mixer.out.weight: h k d",
        "model.layers.{l}.mlp.gate_up_proj.weight: (f + f) d = layer.ffn.gate.weight: d f, layer.ffn.up.weight: d f",
        "model.layers.{l}.mlp.down_proj.weight: d f = layer.ffn.down.weight: f d",
    ),
    ignored={
        "original_max_position_embeddings": "of rotary positions that have been scaled",
    },
)
