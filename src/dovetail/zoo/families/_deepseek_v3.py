# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3."""

from dovetail.config import chain, config_for, modify
from dovetail.models import CausalLM, MultiTokenPrediction
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

from ..hf import GATED, FirstDense, Fixed, LatentScale, Layers, Published, Rope, Shared, Value, tied
from ._common import (
    ENDS,
    EXPERTS,
    GATED_FFN,
    LATENT_ATTENTION,
    LATENT_BIASES,
    NORMS,
    PRE_NORMS,
    SHARED_EXPERT,
    latent_sizes,
)


def deepseek_v3(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_dense_layers: int,
    num_heads: int,
    query_rank: int,
    kv_rank: int,
    nope_dim: int,
    rope_dim: int,
    value_dim: int,
    hidden_dim: int,
    expert_dim: int,
    num_experts: int,
    top_k: int,
    num_groups: int,
    top_groups: int,
    rope_factor: float = 40.0,
    num_predictions: int = 0,
) -> CausalLM.Config:
    """DeepSeek-V3: latent attention; a few dense layers, then layers with routed experts and a shared one.

    Reference: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024 (arXiv:2412.19437).

    Args:
        hidden_dim: of the feed-forward of dense layers.
        expert_dim: of each expert, the shared one too.
        rope_factor: of how much longer sequences have become than 4096.
        num_predictions: of tokens after the next, in training.
    """
    attention = LatentAttention.Config(
        num_heads=num_heads,
        query_rank=query_rank,
        kv_rank=kv_rank,
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=value_dim,
        scale=(nope_dim + rope_dim) ** -0.5 * yarn_magnitude(rope_factor) ** 2,
        rotary=YaRN.Config(factor=rope_factor, original_length=4096, mscale_all_dim=1.0, interleaved=True),
    )
    router = TopKRouter.Config(
        top_k=top_k,
        score="sigmoid",
        scale=2.5,
        num_groups=num_groups,
        top_groups=top_groups,
        selection_rate=1e-3,
        balance_loss=1e-4,
    )
    shared = GatedFeedForward.Config(hidden_dim=expert_dim)
    experts = MoEFeedForward.Config(hidden_dim=expert_dim, num_experts=num_experts, router=router, shared=shared)
    dense = Block.Config(mixer=attention, ffn=GatedFeedForward.Config(hidden_dim=hidden_dim))
    sparse = dense.set(ffn=experts)
    stacks = (
        Repeat.Config(layer=dense, num_layers=num_dense_layers),
        Repeat.Config(layer=sparse, num_layers=num_layers - num_dense_layers),
    )
    model = CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=Sequence.Config(layers=stacks),
        predictions=(MultiTokenPrediction.Config(block=sparse),) * num_predictions,
    )
    init = config_for(normal, stddev=0.006)
    parts = (DenseLinear.Config, DenseGroupedLinear.Config, TopKRouter.Config, Embedding.Config)
    return chain(*(modify(part, lambda cfg: cfg.set(init=init)) for part in parts))(model)


DEEPSEEK_V3 = Published(
    architecture="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    template="deepseek-v3-tiny",
    fields=(
        Layers(),
        FirstDense(GatedFeedForward, MoEFeedForward, default=3),
        *latent_sizes(18_432, 2048),
        Value("n_routed_experts|num_local_experts", "layer.ffn.num_experts", default=256),
        Value("n_group", "layer.ffn.router.num_groups", default=8),
        Value("topk_group", "layer.ffn.router.top_groups", default=4),
        Value("num_experts_per_tok", "layer.ffn.router.top_k", default=8),
        Value("norm_topk_prob", "layer.ffn.router.normalize", default=True),
        Value("routed_scaling_factor", "layer.ffn.router.scale", default=2.5),
        Shared("n_shared_experts", "layer.ffn.shared.hidden_dim", default=1),
        Value("rms_norm_eps", *NORMS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", "layer.ffn.shared.activation", default="silu", codec=GATED),
        Value("attention_bias", *LATENT_BIASES, default=False),
        Rope(interleaved="rope_interleave"),
        LatentScale(),
        Fixed("scoring_func", "sigmoid"),
        Fixed("topk_method", "noaux_tc"),
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
        "model.layers.{l}.mlp.gate.e_score_correction_bias: e = layer.ffn.router.selection_bias: e",
        "model.layers.{n}.* -- predicts further tokens, in training alone",
    ),
    ignored={
        "head_dim": "follows from other fields",
        "qk_head_dim": "follows from other fields",
        "num_key_value_heads": "latent attention has none",
        "num_nextn_predict_layers": "of training alone",
        "pretraining_tp": "how products are split in training",
        "ep_size": "how experts are split",
        "aux_loss_alpha": "of training alone",
        "seq_aux": "of training alone",
    },
)
