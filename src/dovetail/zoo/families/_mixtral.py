# SPDX-License-Identifier: Apache-2.0
"""Mixtral."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, MoEFeedForward, Repeat, RMSNorm, RoPE, TopKRouter

from ..hf import GATED, HeadDim, Layers, Published, Rope, Value, Window, tied
from ._common import ATTENTION, ENDS, NORMS, PRE_NORMS, sizes


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


MIXTRAL = Published(
    architecture="MixtralForCausalLM",
    model_type="mixtral",
    template="mixtral-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=8),
        HeadDim(),
        Value("rms_norm_eps", *NORMS, default=1e-5),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("num_local_experts", "layer.ffn.num_experts", default=8),
        Value("num_experts_per_tok", "layer.ffn.router.top_k", default=2),
        Window(),
        Rope(theta=1_000_000.0),
        tied(),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *PRE_NORMS,
        "model.layers.{l}.block_sparse_moe.gate.weight: e d = layer.ffn.router.weight: d e",
        "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight: f d = layer.ffn.gate.weight: e d f",
        "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight: f d = layer.ffn.up.weight: e d f",
        "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight: d f = layer.ffn.down.weight: e f d",
    ),
    ignored={
        "router_jitter_noise": "of training alone",
    },
)
