# SPDX-License-Identifier: Apache-2.0
"""Gemma 3, the decoder for text."""

import jax

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.nn import (
    Attention,
    Block,
    GatedFeedForward,
    LinearRoPE,
    Repeat,
    RMSNorm,
    RoPE,
    pattern_of,
)
from dovetail.ops import gated


def gemma3(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_dim: int,
    query_scale: float,
    window: int,
    rope_factor: float | None = None,
    global_every: int = 6,
) -> CausalLM.Config:
    """Gemma 3: norms before and after, normed queries and keys, a window in most layers, tied embedding.

    Reference: Gemma Team, Gemma 3 Technical Report, 2025 (arXiv:2503.19786).

    Args:
        query_scale: scores are divided by its square root.
        window: of all layers but each `global_every`-th.
        rope_factor: positions of layers without a window are divided by it.
    """
    norm = RMSNorm.Config(offset=1.0)
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=query_scale**-0.5,
        query_norm=norm,
        key_norm=norm,
    )
    block = Block.Config(
        mixer_norm=norm,
        mixer=attention,
        mixer_out_norm=norm,
        ffn_norm=norm,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim, activation=config_for(gated, jax.nn.gelu)),
        ffn_out_norm=norm,
    )
    near, far = RoPE.Config(theta=10_000.0), RoPE.Config(theta=1_000_000.0)
    if rope_factor is not None:
        far = LinearRoPE.Config(theta=1_000_000.0, factor=rope_factor)
    local = global_every - 1
    changes = {"mixer.window": (window,) * local + (None,), "mixer.rotary": (near,) * local + (far,)}
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        embedding_scale=dim**0.5,
        stack=Repeat.Config(layer=pattern_of(block, changes), num_layers=num_layers),
        norm=norm,
        head=None,
    )
