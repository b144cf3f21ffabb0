# SPDX-License-Identifier: Apache-2.0
"""Llama, from 2 to 3.2."""

from dovetail.models import CausalLM
from dovetail.nn import (
    Attention,
    Block,
    DenseLinear,
    GatedFeedForward,
    Llama3RoPE,
    Repeat,
    RMSNorm,
    RoPE,
)

from ..hf import GATED, Fixed, HeadDim, Layers, Published, Rope, Value, tied
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, FFN_BIASES, GATED_FFN, NORMS, PRE_NORMS, SIZES


def llama(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    theta: float = 10_000.0,
    rope_factor: float | None = None,
    eps: float = 1e-5,
    tied: bool = False,
) -> CausalLM.Config:
    """Llama: RMSNorm, rotary positions, grouped-query attention, gated feed-forward, no biases.

    References: Touvron et al., Llama 2: Open Foundation and Fine-Tuned Chat Models, 2023 (arXiv:2307.09288);
    Grattafiori et al., The Llama 3 Herd of Models, 2024 (arXiv:2407.21783).

    Args:
        rope_factor: of how much longer sequences have become than 8192, from Llama 3.1 on.
    """
    norm = RMSNorm.Config(eps=eps)
    rotary = RoPE.Config(theta=theta) if rope_factor is None else Llama3RoPE.Config(theta=theta, factor=rope_factor)
    block = Block.Config(
        mixer_norm=norm,
        mixer=Attention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads, rotary=rotary),
        ffn_norm=norm,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim),
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        norm=norm,
        head=None if tied else DenseLinear.Config(),
    )


LLAMA = Published(
    architecture="LlamaForCausalLM",
    model_type="llama",
    template="llama3-tiny",
    fields=(
        Layers(),
        *SIZES,
        HeadDim(),
        Value("rms_norm_eps", *NORMS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        Value("mlp_bias", *FFN_BIASES, default=False),
        Rope(),
        Fixed("rope_interleaved", False),
        tied(),
    ),
    weights=(*ENDS, *ATTENTION, *PRE_NORMS, *GATED_FFN),
    ignored={"pretraining_tp": "how products are split in training", "is_llama_config": "names the family"},
    priority=1,
)
