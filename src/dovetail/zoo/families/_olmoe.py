# SPDX-License-Identifier: Apache-2.0
"""OLMoE."""

from dovetail.config import chain, config_for, modify
from dovetail.models import CausalLM
from dovetail.module import normal
from dovetail.nn import (
    Attention,
    Block,
    DenseGroupedLinear,
    DenseLinear,
    MoEFeedForward,
    Repeat,
    RMSNorm,
    TopKRouter,
)

from ..hf import GATED, HeadDim, Layers, Published, Rope, Value, tied
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, EXPERTS, NORMS, PRE_NORMS, QK_EPS, SIZES, WIDE_QK_NORMS


def olmoe(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    num_experts: int = 64,
    top_k: int = 8,
) -> CausalLM.Config:
    """OLMoE: queries and keys normed over all heads, and many small experts, whose weights need not sum to 1.

    Reference: Muennighoff et al., OLMoE: Open Mixture-of-Experts Language Models, 2024 (arXiv:2409.02060).

    Args:
        hidden_dim: of each expert.
    """
    norm = RMSNorm.Config(eps=1e-5)
    attention = Attention.Config(
        num_heads=num_heads, num_kv_heads=num_kv_heads, query_norm=norm, key_norm=norm, norm_over="all_heads"
    )
    router = TopKRouter.Config(top_k=top_k, normalize=False, balance_loss=0.01, z_loss=0.001)
    experts = MoEFeedForward.Config(hidden_dim=hidden_dim, num_experts=num_experts, router=router)
    block = Block.Config(mixer_norm=norm, mixer=attention, ffn_norm=norm, ffn=experts)
    stack = Repeat.Config(layer=block, num_layers=num_layers)
    model = CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=stack, norm=norm)
    init = config_for(normal, stddev=0.02)
    parts = (DenseLinear.Config, DenseGroupedLinear.Config, TopKRouter.Config)
    return chain(*(modify(part, lambda cfg: cfg.set(init=init)) for part in parts))(model)


OLMOE = Published(
    architecture="OlmoeForCausalLM",
    model_type="olmoe",
    template="olmoe-tiny",
    fields=(
        Layers(),
        *SIZES,
        HeadDim(),
        Value("num_experts", "layer.ffn.num_experts", default=64),
        Value("num_experts_per_tok", "layer.ffn.router.top_k", default=8),
        Value("norm_topk_prob", "layer.ffn.router.normalize", default=False),
        Value("clip_qkv", "layer.mixer.clip", default=None, null=None),
        Value("rms_norm_eps", *NORMS, *QK_EPS, default=1e-5),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        Rope(),
        tied(),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *WIDE_QK_NORMS,
        *PRE_NORMS,
        *EXPERTS,
    ),
)
