# SPDX-License-Identifier: Apache-2.0
"""Qwen 2 and 2.5."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, DenseLinear, GatedFeedForward, Repeat, RoPE

from ..hf import GATED, Fixed, HeadDim, Layers, Published, Rope, Value, WindowTypes, after_first, tied
from ._common import ATTENTION, ENDS, GATED_FFN, NORMS, PRE_NORMS, sizes


def qwen2(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    theta: float = 1_000_000.0,
    tied: bool = False,
) -> CausalLM.Config:
    """Qwen 2: RMSNorm, rotary positions, grouped-query attention with biases on the way in, gated feed-forward.

    References: Yang et al., Qwen2 Technical Report, 2024 (arXiv:2407.10671); Qwen2.5 Technical Report, 2024
    (arXiv:2412.15115).
    """
    biased = DenseLinear.Config(bias=True)
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        query=biased,
        key=biased,
        value=biased,
        rotary=RoPE.Config(theta=theta),
    )
    block = Block.Config(mixer=attention, ffn=GatedFeedForward.Config(hidden_dim=hidden_dim))
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        head=None if tied else DenseLinear.Config(),
    )


QWEN2 = Published(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    template="qwen2.5-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=32),
        HeadDim(),
        Value("rms_norm_eps", *NORMS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Fixed("use_mrope", False),
        WindowTypes(after_first, switch=True),
        Rope(),
        tied(),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *PRE_NORMS,
        *GATED_FFN,
    ),
    ignored={
        "max_window_layers": "layer_types says it",
    },
)
