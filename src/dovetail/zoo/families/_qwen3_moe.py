# SPDX-License-Identifier: Apache-2.0
"""Qwen 3 with experts."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, MoEFeedForward, Repeat, RMSNorm, RoPE, TopKRouter


def qwen3_moe(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    num_experts: int = 128,
    top_k: int = 8,
    head_dim: int = 128,
    theta: float = 1_000_000.0,
) -> CausalLM.Config:
    """Qwen 3 MoE: grouped-query attention with normed queries and keys, and many small experts in every layer.

    Reference: Yang et al., Qwen3 Technical Report, 2025 (arXiv:2505.09388).

    Args:
        hidden_dim: of each expert.
    """
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        query_norm=RMSNorm.Config(),
        key_norm=RMSNorm.Config(),
        rotary=RoPE.Config(theta=theta),
    )
    router = TopKRouter.Config(top_k=top_k)
    experts = MoEFeedForward.Config(hidden_dim=hidden_dim, num_experts=num_experts, router=router)
    stack = Repeat.Config(layer=Block.Config(mixer=attention, ffn=experts), num_layers=num_layers)
    return CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=stack)
