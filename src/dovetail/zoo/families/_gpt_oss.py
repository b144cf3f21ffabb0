# SPDX-License-Identifier: Apache-2.0
"""gpt-oss."""

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.nn import (
    Attention,
    Block,
    DenseGroupedLinear,
    DenseLinear,
    MoEFeedForward,
    Repeat,
    RMSNorm,
    TopKRouter,
    YaRN,
    pattern_of,
)
from dovetail.ops import clamped_swiglu

from ..hf import ClampedGate, HeadDim, Layers, Published, Rope, Value, WindowTypes, alternating, tied
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, NORMS, PRE_NORMS, sizes


def gpt_oss(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_dim: int,
    num_experts: int,
    top_k: int = 4,
    window: int = 128,
    rope_factor: float = 32.0,
) -> CausalLM.Config:
    """gpt-oss: attention with sinks and a window in every other layer, experts with biases and a clamped gate.

    Reference: OpenAI, gpt-oss-120b and gpt-oss-20b Model Card, 2025 (arXiv:2508.10925), and its code.

    Args:
        hidden_dim: of each expert.
        window: of every other layer, from the first on.
        rope_factor: of how much longer sequences have become than 4096.
    """
    norm, biased = RMSNorm.Config(eps=1e-5), DenseLinear.Config(bias=True)
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        sinks=True,
        query=biased,
        key=biased,
        value=biased,
        out=biased,
        rotary=YaRN.Config(theta=150_000.0, factor=rope_factor, original_length=4096, truncate=False),
    )
    each = DenseGroupedLinear.Config(bias=True)
    experts = MoEFeedForward.Config(
        hidden_dim=hidden_dim,
        num_experts=num_experts,
        router=TopKRouter.Config(top_k=top_k, bias=True),
        activation=config_for(clamped_swiglu),
        gate=each,
        up=each,
        down=each,
    )
    block = Block.Config(mixer_norm=norm, mixer=attention, ffn_norm=norm, ffn=experts)
    pattern = pattern_of(block, {"mixer.window": (window, None)})
    stack = Repeat.Config(layer=pattern, num_layers=num_layers)
    return CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=stack, norm=norm)


YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
GPT_OSS = Published(
    architecture="GptOssForCausalLM",
    model_type="gpt_oss",
    template="gpt-oss-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=8),
        HeadDim(default=64),
        Value("num_local_experts", "layer.ffn.num_experts", default=128),
        Value("num_experts_per_tok|experts_per_token", "layer.ffn.router.top_k", default=4),
        Value("rms_norm_eps", *NORMS, default=1e-5),
        Value("attention_bias", *ATTENTION_BIASES, default=True),
        ClampedGate(),
        WindowTypes(alternating(2, 1), default=128),
        Rope(theta=150_000.0, without=YARN),
        tied(),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *PRE_NORMS,
        "model.layers.{l}.self_attn.sinks: h = layer.mixer.sink: h",
        "model.layers.{l}.mlp.router.weight: e d = layer.ffn.router.weight: d e",
        "model.layers.{l}.mlp.router.bias: e = layer.ffn.router.bias: e",
        "model.layers.{l}.mlp.experts.gate_up_proj: e d (f (1 + 1)) = "
        "layer.ffn.gate.weight: e d f, layer.ffn.up.weight: e d f",
        "model.layers.{l}.mlp.experts.gate_up_proj_bias: e (f (1 + 1)) = "
        "layer.ffn.gate.bias: e f, layer.ffn.up.bias: e f",
        "model.layers.{l}.mlp.experts.down_proj: e f d = layer.ffn.down.weight: e f d",
        "model.layers.{l}.mlp.experts.down_proj_bias: e d = layer.ffn.down.bias: e d",
    ),
    ignored={
        "initial_context_length": "rope_parameters says it",
        "hidden_act": "experts have an activation of their own",
    },
)
