# SPDX-License-Identifier: Apache-2.0
"""Mistral."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, GatedFeedForward, Repeat, RMSNorm, RoPE

from ..hf import GATED, HeadDim, Layers, Published, Rope, Value, Window, tied
from ._common import ATTENTION, ENDS, GATED_FFN, NORMS, PRE_NORMS, sizes


def mistral(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    window: int,
    theta: float = 10_000.0,
) -> CausalLM.Config:
    """Mistral: RMSNorm, rotary positions, attention to the last `window` positions, gated feed-forward.

    Reference: Jiang et al., Mistral 7B, 2023 (arXiv:2310.06825).
    """
    norm = RMSNorm.Config(eps=1e-5)
    attention = Attention.Config(
        num_heads=num_heads, num_kv_heads=num_kv_heads, window=window, rotary=RoPE.Config(theta=theta)
    )
    block = Block.Config(
        mixer_norm=norm, mixer=attention, ffn_norm=norm, ffn=GatedFeedForward.Config(hidden_dim=hidden_dim)
    )
    stack = Repeat.Config(layer=block, num_layers=num_layers)
    return CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=stack, norm=norm)


MISTRAL = Published(
    architecture="MistralForCausalLM",
    model_type="mistral",
    template="mistral-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=8),
        HeadDim(),
        Value("rms_norm_eps", *NORMS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Window(4096),
        Rope(),
        tied(),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *PRE_NORMS,
        *GATED_FFN,
    ),
)
