# SPDX-License-Identifier: Apache-2.0
"""Granite 4.0 H, dense and with experts."""

from dovetail.models import CausalLM
from dovetail.nn import (
    Attention,
    Block,
    GatedFeedForward,
    Mamba2,
    MoEFeedForward,
    NoRotary,
    Repeat,
    RMSNorm,
    TopKRouter,
)

from ..hf import GATED, Layers, MixerTypes, Published, Rope, TimeStepLimit, Value, WithExperts, tied
from ._common import (
    ENDS,
    MAMBA_SIZES,
    MULTIPLIERS,
    NORMS,
    PRE_NORMS,
    WORDS,
    attention,
    attention_biases,
    convs,
    heads,
    mamba,
    mamba_biases,
)


def granite_hybrid(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    mamba_head_dim: int = 64,
    state_dim: int = 128,
    attention_scale: float,
    logit_scale: float,
    period: int = 10,
    attention_at: int = 5,
    expert_dim: int = 0,
    num_experts: int = 0,
    top_k: int = 1,
) -> CausalLM.Config:
    """Granite 4.0 H: Mamba 2 in most layers, attention without positions in the others, a feed-forward in each.

    Reference: IBM, Granite 4.0 Language Models, 2025 (github.com/ibm-granite/granite-4.0-language-models).

    Args:
        hidden_dim: of the feed-forward, which with experts is the shared one.
        attention_at: the layer with attention among `period` layers, from 0.
        num_experts: of `expert_dim` each; 0: there are none.
    """
    norm = RMSNorm.Config(eps=1e-5)
    ffn = dense = GatedFeedForward.Config(hidden_dim=hidden_dim)
    if num_experts:
        router = TopKRouter.Config(top_k=top_k)
        ffn = MoEFeedForward.Config(hidden_dim=expert_dim, num_experts=num_experts, router=router, shared=dense)
    mamba = Block.Config(
        mixer_norm=norm,
        mixer=Mamba2.Config(head_dim=mamba_head_dim, state_dim=state_dim, norm_over="group"),
        ffn_norm=norm,
        ffn=ffn,
        residual_scale=0.22,
    )
    attention = mamba.set(
        mixer=Attention.Config(
            num_heads=num_heads, num_kv_heads=num_kv_heads, scale=attention_scale, rotary=NoRotary.Config()
        )
    )
    pattern = tuple(attention if i == attention_at else mamba for i in range(period))
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        embedding_scale=12.0,
        stack=Repeat.Config(layer=pattern, num_layers=num_layers),
        norm=norm,
        head=None,
        logit_scale=logit_scale,
    )


GRANITE_HYBRID = Published(
    architecture="GraniteMoeHybridForCausalLM",
    model_type="granitemoehybrid",
    template="hybrid-tiny",
    fields=(
        Layers(),
        MixerTypes({"mamba": Mamba2, "linear_attention": Mamba2, "attention": Attention, "full_attention": Attention}),
        WithExperts(
            "num_local_experts",
            GatedFeedForward,
            MoEFeedForward.Config(shared=GatedFeedForward.Config()),
            default=8,
        ),
        *WORDS,
        *heads("layer.mixer:Attention"),
        Value(
            "shared_intermediate_size",
            "layer.ffn:GatedFeedForward.hidden_dim",
            "layer.ffn.shared.hidden_dim",
            default=1024,
        ),
        Value("intermediate_size", "layer.ffn:MoEFeedForward.hidden_dim", default=11_008),
        Value("num_local_experts", "layer.ffn.num_experts", default=8),
        Value("num_experts_per_tok", "layer.ffn.router.top_k", default=2),
        *MULTIPLIERS,
        Value("attention_multiplier", "layer.mixer:Attention.scale", default=1.0),
        *MAMBA_SIZES,
        Value("mamba_d_conv", *convs("layer.mixer:Mamba2", "width"), default=4),
        Value("mamba_conv_bias", *convs("layer.mixer:Mamba2", "bias"), default=True),
        Value("mamba_proj_bias", *mamba_biases("layer.mixer:Mamba2"), default=False),
        TimeStepLimit("layer.mixer:Mamba2"),
        Value("rms_norm_eps", *NORMS, "layer.mixer:Mamba2.norm.eps", default=1e-6),
        Value("hidden_act", "layer.ffn.activation", "layer.ffn.shared.activation", default="silu", codec=GATED),
        Value("attention_bias", *attention_biases("layer.mixer:Attention"), default=False),
        Rope("layer.mixer:Attention.rotary", only_where=("position_embedding_type", "rope")),
        tied(),
    ),
    weights=(
        *ENDS,
        *PRE_NORMS,
        *attention("layer.mixer:Attention"),
        *mamba("model.layers.{l}.mamba", "layer.mixer:Mamba2"),
        "model.layers.{l}.shared_mlp.input_linear.weight: (f + f) d = "
        "layer.ffn:GatedFeedForward.gate.weight: d f, layer.ffn:GatedFeedForward.up.weight: d f",
        "model.layers.{l}.shared_mlp.output_linear.weight: d f = layer.ffn:GatedFeedForward.down.weight: f d",
        "model.layers.{l}.shared_mlp.input_linear.weight: (f + f) d = "
        "layer.ffn.shared.gate.weight: d f, layer.ffn.shared.up.weight: d f",
        "model.layers.{l}.shared_mlp.output_linear.weight: d f = layer.ffn.shared.down.weight: f d",
        "model.layers.{l}.block_sparse_moe.router.layer.weight: e d = layer.ffn.router.weight: d e",
        "model.layers.{l}.block_sparse_moe.input_linear.weight: e (f + f) d = "
        "layer.ffn.gate.weight: e d f, layer.ffn.up.weight: e d f",
        "model.layers.{l}.block_sparse_moe.output_linear.weight: e d f = layer.ffn.down.weight: e f d",
    ),
    ignored={
        "mamba_chunk_size": "how it is computed, not what",
        "init_method": "of training from scratch",
        "normalization_function": "rmsnorm, as in all of the family",
    },
)
