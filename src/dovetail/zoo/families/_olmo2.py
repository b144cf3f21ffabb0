# SPDX-License-Identifier: Apache-2.0
"""OLMo 2."""

from dovetail.config import config_for, modify
from dovetail.models import CausalLM
from dovetail.module import normal
from dovetail.nn import Attention, Block, DenseLinear, GatedFeedForward, Repeat, RMSNorm, RoPE

from ..hf import GATED, HeadDim, Layers, Published, Rope, Value, tied
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


def olmo2(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    theta: float = 500_000.0,
) -> CausalLM.Config:
    """OLMo 2: norms of what is added, queries and keys normed over all heads, rotary positions, gated feed-forward.

    Reference: OLMo Team, 2 OLMo 2 Furious, 2024 (arXiv:2501.00656).
    """
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        query_norm=RMSNorm.Config(),
        key_norm=RMSNorm.Config(),
        norm_over="all_heads",
        rotary=RoPE.Config(theta=theta),
    )
    block = Block.Config(
        mixer_norm=None,
        mixer=attention,
        mixer_out_norm=RMSNorm.Config(),
        ffn_norm=None,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim),
        ffn_out_norm=RMSNorm.Config(),
    )
    stack = Repeat.Config(layer=block, num_layers=num_layers)
    model = CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=stack, z_loss=1e-5)
    return modify(DenseLinear.Config, lambda linear: linear.set(init=config_for(normal, stddev=0.02)))(model)


OLMO2 = Published(
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    template="olmo2-tiny",
    fields=(
        Layers(),
        *SIZES,
        HeadDim(),
        Value("rms_norm_eps", "norm.eps", *OUT_NORMS_EPS, *QK_EPS, default=1e-5),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        Rope(),
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
