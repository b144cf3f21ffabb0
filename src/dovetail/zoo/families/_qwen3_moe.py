# SPDX-License-Identifier: Apache-2.0
"""Qwen 3 with experts."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, GatedFeedForward, MoEFeedForward, Repeat, RMSNorm, RoPE, TopKRouter

from ..hf import GATED, HeadDim, Layers, Published, Rope, SparseSteps, Value, Window, tied
from ._common import (
    ATTENTION,
    ATTENTION_BIASES,
    ENDS,
    EXPERTS,
    GATED_FFN,
    NORMS,
    PRE_NORMS,
    QK_EPS,
    QK_NORMS,
    WORDS,
    heads,
)


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


QWEN3_MOE = Published(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    template="qwen3-moe-tiny",
    fields=(
        Layers(),
        SparseSteps(GatedFeedForward, MoEFeedForward),
        *WORDS,
        *heads(kv_heads=4),
        HeadDim(),
        Value("intermediate_size", "layer.ffn:GatedFeedForward.hidden_dim", default=6144),
        Value("moe_intermediate_size", "layer.ffn:MoEFeedForward.hidden_dim", default=768),
        Value("num_experts|num_local_experts", "layer.ffn:MoEFeedForward.num_experts", default=128),
        Value("num_experts_per_tok", "layer.ffn:MoEFeedForward.router.top_k", default=8),
        Value("norm_topk_prob", "layer.ffn:MoEFeedForward.router.normalize", default=False),
        Value("rms_norm_eps", *NORMS, *QK_EPS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        Window(switch=True),
        Rope(),
        tied(),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *QK_NORMS,
        *PRE_NORMS,
        *GATED_FFN,
        *EXPERTS,
    ),
    ignored={
        "max_window_layers": "all layers have the window, or none",
    },
)
