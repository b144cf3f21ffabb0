# SPDX-License-Identifier: Apache-2.0
"""Qwen 3, dense."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, DenseLinear, GatedFeedForward, Repeat, RMSNorm, RoPE

from ..hf import GATED, HeadDim, Layers, Published, Rope, Value, WindowTypes, after_first, tied
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, GATED_FFN, NORMS, PRE_NORMS, QK_EPS, QK_NORMS, sizes


def qwen3(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    head_dim: int = 128,
    theta: float = 1_000_000.0,
    tied: bool = False,
) -> CausalLM.Config:
    """Qwen 3: RMSNorm, rotary positions, grouped-query attention with normed queries and keys, gated feed-forward.

    Reference: Yang et al., Qwen3 Technical Report, 2025 (arXiv:2505.09388).
    """
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        query_norm=RMSNorm.Config(),
        key_norm=RMSNorm.Config(),
        rotary=RoPE.Config(theta=theta),
    )
    block = Block.Config(mixer=attention, ffn=GatedFeedForward.Config(hidden_dim=hidden_dim))
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        head=None if tied else DenseLinear.Config(),
    )


QWEN3 = Published(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    template="qwen3-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=32),
        HeadDim(default=128),
        Value("rms_norm_eps", *NORMS, *QK_EPS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        WindowTypes(after_first, switch=True),
        Rope(),
        tied(),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *QK_NORMS,
        *PRE_NORMS,
        *GATED_FFN,
    ),
    ignored={
        "max_window_layers": "layer_types says it",
    },
)
