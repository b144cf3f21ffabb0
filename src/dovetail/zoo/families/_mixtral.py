# SPDX-License-Identifier: Apache-2.0
"""Mixtral."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, MoEFeedForward, Repeat, RMSNorm, RoPE, TopKRouter


def mixtral(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    num_experts: int = 8,
    top_k: int = 2,
    theta: float = 1_000_000.0,
) -> CausalLM.Config:
    """Mixtral: RMSNorm, rotary positions, grouped-query attention, and experts in every layer.

    Reference: Jiang et al., Mixtral of Experts, 2024 (arXiv:2401.04088).

    Args:
        hidden_dim: of each expert.
    """
    norm = RMSNorm.Config(eps=1e-5)
    router = TopKRouter.Config(top_k=top_k)
    block = Block.Config(
        mixer_norm=norm,
        mixer=Attention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads, rotary=RoPE.Config(theta=theta)),
        ffn_norm=norm,
        ffn=MoEFeedForward.Config(hidden_dim=hidden_dim, num_experts=num_experts, router=router),
    )
    stack = Repeat.Config(layer=block, num_layers=num_layers)
    return CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=stack, norm=norm)
