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
