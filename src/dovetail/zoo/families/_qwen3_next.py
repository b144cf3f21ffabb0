# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Next."""

from dovetail.models import CausalLM
from dovetail.nn import (
    Attention,
    Block,
    DenseLinear,
    GatedDeltaNet,
    GatedFeedForward,
    MoEFeedForward,
    PartialRotary,
    Repeat,
    RMSNorm,
    RoPE,
    TopKRouter,
    WeightedFeedForward,
)

from ..hf import Fixed, HeadDim, Layers, MixerTypes, Published, Rope, SparseSteps, Value, full_every, tied
from ._common import (
    ENDS,
    EXPERTS,
    NORMS,
    PRE_NORMS,
    QK_EPS,
    QK_NORMS,
    WORDS,
    attention,
    attention_biases,
    convs,
    gated_ffn,
    heads,
)


def qwen3_next(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    delta_heads: int,
    delta_key_heads: int,
    delta_head_dim: int,
    expert_dim: int,
    shared_dim: int,
    num_experts: int,
    top_k: int,
    theta: float = 10_000_000.0,
    rotated: float = 0.25,
    attention_every: int = 4,
) -> CausalLM.Config:
    """Qwen3-Next: Gated DeltaNet in most layers, gated attention in the others; experts, and a shared one with a gate.

    Reference: Qwen Team, Qwen3-Next: Towards Ultimate Training and Inference Efficiency, 2025 (qwen.ai/blog), and its
    code in transformers.

    Args:
        delta_heads: of values in Gated DeltaNet; keys and queries have `delta_key_heads`.
        shared_dim: of the shared expert.
        rotated: the share of a head that positions turn.
        attention_every: the last of so many layers has attention.
    """
    norm = RMSNorm.Config(offset=1.0)
    delta = GatedDeltaNet.Config(
        num_heads=delta_heads,
        num_key_heads=delta_key_heads,
        key_head_dim=delta_head_dim,
        value_head_dim=delta_head_dim,
    )
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        gate=DenseLinear.Config(),
        query_norm=norm,
        key_norm=norm,
        rotary=PartialRotary.Config(fraction=rotated, inner=RoPE.Config(theta=theta)),
    )
    experts = MoEFeedForward.Config(
        hidden_dim=expert_dim,
        num_experts=num_experts,
        router=TopKRouter.Config(top_k=top_k, balance_loss=0.001),
        shared=WeightedFeedForward.Config(inner=GatedFeedForward.Config(hidden_dim=shared_dim)),
    )
    linear = Block.Config(mixer_norm=norm, mixer=delta, ffn_norm=norm, ffn=experts)
    pattern = (linear,) * (attention_every - 1) + (linear.set(mixer=attention),)
    stack = Repeat.Config(layer=pattern, num_layers=num_layers)
    return CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=stack, norm=norm)


QWEN3_NEXT = Published(
    architecture="Qwen3NextForCausalLM",
    model_type="qwen3_next",
    template="qwen3-next-tiny",
    fields=(
        Layers(),
        MixerTypes(
            {"linear_attention": GatedDeltaNet, "full_attention": Attention}, full_every("full_attention_interval", 4)
        ),
        SparseSteps(GatedFeedForward, MoEFeedForward),
        *WORDS,
        *heads("layer.mixer:Attention", kv_heads=2),
        HeadDim("layer.mixer:Attention", default=256),
        Value("linear_num_value_heads", "layer.mixer:GatedDeltaNet.num_heads", default=32),
        Value("linear_num_key_heads", "layer.mixer:GatedDeltaNet.num_key_heads", default=16),
        Value("linear_key_head_dim", "layer.mixer:GatedDeltaNet.key_head_dim", default=128),
        Value("linear_value_head_dim", "layer.mixer:GatedDeltaNet.value_head_dim", default=128),
        Value("linear_conv_kernel_dim", *convs("layer.mixer:GatedDeltaNet", "width"), default=4),
        Value("intermediate_size", "layer.ffn:GatedFeedForward.hidden_dim", default=5632),
        Value("moe_intermediate_size", "layer.ffn:MoEFeedForward.hidden_dim", default=512),
        Value("shared_expert_intermediate_size", "layer.ffn:MoEFeedForward.shared.inner.hidden_dim", default=512),
        Value("num_experts", "layer.ffn:MoEFeedForward.num_experts", default=512),
        Value("num_experts_per_tok", "layer.ffn:MoEFeedForward.router.top_k", default=10),
        Value("norm_topk_prob", "layer.ffn:MoEFeedForward.router.normalize", default=True),
        Value("rms_norm_eps", *NORMS, *QK_EPS, "layer.mixer:GatedDeltaNet.norm.eps", default=1e-6),
        Value(
            "attention_bias",
            *attention_biases("layer.mixer:Attention"),
            "layer.mixer:Attention.gate.bias",
            default=False,
        ),
        Rope("layer.mixer:Attention.rotary", partial=0.25),
        Fixed("hidden_act", "silu"),
        tied(),
    ),
    weights=(
        *ENDS,
        *PRE_NORMS,
        *QK_NORMS,
        *attention("layer.mixer:Attention")[1:4],
        *attention("layer.mixer:Attention")[5:],
        "model.layers.{l}.self_attn.q_proj.weight: (h (k + k)) d = "
        "layer.mixer:Attention.query.weight: d h k, layer.mixer:Attention.gate.weight: d h k",
        "model.layers.{l}.self_attn.q_proj.bias: (h (k + k)) = "
        "layer.mixer:Attention.query.bias: h k, layer.mixer:Attention.gate.bias: h k",
        "model.layers.{l}.linear_attn.in_proj_qkvz.weight: (g (k + k + r v + r v)) d = "
        "layer.mixer:GatedDeltaNet.query.weight: d g k, layer.mixer:GatedDeltaNet.key.weight: d g k, "
        "layer.mixer:GatedDeltaNet.value.weight: d (g r) v, layer.mixer:GatedDeltaNet.gate.weight: d (g r) v",
        "model.layers.{l}.linear_attn.in_proj_ba.weight: (g (r + r)) d = "
        "layer.mixer.strength.weight: d (g r), layer.mixer.delta.weight: d (g r) "
        "~ layer.mixer:GatedDeltaNet.query.weight: d g k",
        "model.layers.{l}.linear_attn.conv1d.weight: (g k + g k + h v) 1 w = "
        "layer.mixer.query_conv.weight: w g k, layer.mixer.key_conv.weight: w g k, "
        "layer.mixer.value_conv.weight: w h v",
        "model.layers.{l}.linear_attn.dt_bias: h = layer.mixer.step_bias: h",
        "model.layers.{l}.linear_attn.A_log: h = layer.mixer.log_rate: h",
        "model.layers.{l}.linear_attn.norm.weight: v = layer.mixer:GatedDeltaNet.norm.scale: v",
        "model.layers.{l}.linear_attn.out_proj.weight: d (h v) = layer.mixer:GatedDeltaNet.out.weight: h v d",
        *gated_ffn(),
        *EXPERTS,
        *gated_ffn("model.layers.{l}.mlp.shared_expert", "layer.ffn.shared.inner"),
        "model.layers.{l}.mlp.shared_expert_gate.weight: 1 d = layer.ffn.shared.weight.weight: d 1",
        "mtp.* -- predicts further tokens, in training alone",
    ),
    ignored={
        "full_attention_interval": "layer_types says it",
    },
)
