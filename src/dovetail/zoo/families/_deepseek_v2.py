# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2."""

from dovetail.config import chain, config_for, modify
from dovetail.models import CausalLM
from dovetail.module import normal
from dovetail.nn import (
    Block,
    DenseGroupedLinear,
    DenseLinear,
    Embedding,
    GatedFeedForward,
    LatentAttention,
    MoEFeedForward,
    Repeat,
    Sequence,
    TopKRouter,
    YaRN,
)
from dovetail.ops import yarn_magnitude

from ..hf import GATED, FirstDense, Fixed, LatentScale, Layers, Published, Rope, Shared, TopKMethod, Value, tied
from ._common import (
    ENDS,
    EXPERTS,
    GATED_FFN,
    LATENT_ATTENTION,
    LATENT_BIASES,
    NORMS,
    PRE_NORMS,
    SHARED_EXPERT,
    ffn_biases,
    latent_sizes,
)


def deepseek_v2(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_dense_layers: int,
    num_heads: int,
    query_rank: int | None = None,
    kv_rank: int,
    nope_dim: int,
    rope_dim: int,
    value_dim: int,
    hidden_dim: int,
    expert_dim: int,
    num_experts: int,
    num_shared: int,
    top_k: int,
    num_groups: int = 1,
    top_groups: int = 1,
    router_scale: float = 1.0,
    rope_factor: float = 40.0,
) -> CausalLM.Config:
    """DeepSeek-V2: latent attention; a few dense layers, then layers with routed experts and shared ones.

    Reference: DeepSeek-AI, DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model, 2024
    (arXiv:2405.04434).

    Args:
        hidden_dim: of the feed-forward of dense layers.
        expert_dim: of each expert; shared ones are one feed-forward, `num_shared` times as wide.
        router_scale: times the weights of experts, which are not normalised.
        rope_factor: of how much longer sequences have become than 4096.
    """
    mscale = 0.707
    attention = LatentAttention.Config(
        num_heads=num_heads,
        query_rank=query_rank,
        kv_rank=kv_rank,
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=value_dim,
        scale=(nope_dim + rope_dim) ** -0.5 * yarn_magnitude(rope_factor, mscale) ** 2,
        rotary=YaRN.Config(
            factor=rope_factor, original_length=4096, mscale=mscale, mscale_all_dim=mscale, interleaved=True
        ),
    )
    router = TopKRouter.Config(
        top_k=top_k,
        normalize=False,
        scale=router_scale,
        num_groups=num_groups,
        top_groups=top_groups,
        group_score="max",
        balance_loss=0.003,
    )
    shared = GatedFeedForward.Config(hidden_dim=num_shared * expert_dim)
    experts = MoEFeedForward.Config(hidden_dim=expert_dim, num_experts=num_experts, router=router, shared=shared)
    dense = Block.Config(mixer=attention, ffn=GatedFeedForward.Config(hidden_dim=hidden_dim))
    stacks = (
        Repeat.Config(layer=dense, num_layers=num_dense_layers),
        Repeat.Config(layer=dense.set(ffn=experts), num_layers=num_layers - num_dense_layers),
    )
    model = CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=Sequence.Config(layers=stacks))
    init = config_for(normal, stddev=0.006)
    parts = (DenseLinear.Config, DenseGroupedLinear.Config, TopKRouter.Config, Embedding.Config)
    return chain(*(modify(part, lambda cfg: cfg.set(init=init)) for part in parts))(model)


DEEPSEEK_V2 = Published(
    architecture="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    template="deepseek-v2-tiny",
    fields=(
        Layers(),
        FirstDense(GatedFeedForward, MoEFeedForward),
        *latent_sizes(11_008, 1407),
        Value("n_routed_experts|num_local_experts|num_experts", "layer.ffn.num_experts", default=64),
        Value("num_experts_per_tok", "layer.ffn.router.top_k", default=6),
        TopKMethod(),
        Value("routed_scaling_factor", "layer.ffn.router.scale", default=1.0),
        Shared("n_shared_experts", "layer.ffn.shared.hidden_dim", default=2),
        Value("rms_norm_eps", *NORMS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", "layer.ffn.shared.activation", default="silu", codec=GATED),
        Value("attention_bias", *LATENT_BIASES, default=False),
        Value("mlp_bias", *ffn_biases("layer.ffn:GatedFeedForward"), *ffn_biases("layer.ffn.shared"), default=False),
        Rope(interleaved=True),
        LatentScale(),
        Fixed("scoring_func", "softmax"),
        Fixed("moe_layer_freq", 1),
        tied(),
    ),
    weights=(
        *ENDS,
        *LATENT_ATTENTION,
        *PRE_NORMS,
        *GATED_FFN,
        *EXPERTS,
        *SHARED_EXPERT,
    ),
    ignored={
        "head_dim": "follows from other fields",
        "qk_head_dim": "follows from other fields",
        "num_key_value_heads": "latent attention has none",
        "norm_topk_prob": "transformers does not use it",
        "pretraining_tp": "how products are split in training",
        "ep_size": "how experts are split",
        "aux_loss_alpha": "of training alone",
        "seq_aux": "of training alone",
    },
)
