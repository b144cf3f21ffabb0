# SPDX-License-Identifier: Apache-2.0
"""Gemma 2."""

import jax

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, GatedFeedForward, Repeat, RMSNorm, pattern_of
from dovetail.ops import gated


def gemma2(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_dim: int,
    query_scale: float,
    window: int = 4096,
) -> CausalLM.Config:
    """Gemma 2: norms before and after, a window in every other layer, capped scores and logits, tied embedding.

    Reference: Gemma Team, Gemma 2: Improving Open Language Models at a Practical Size, 2024 (arXiv:2408.00118).

    Args:
        query_scale: scores are divided by its square root.
        window: of every other layer, from the first on.
    """
    norm = RMSNorm.Config(offset=1.0)
    attention = Attention.Config(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=query_scale**-0.5, soft_cap=50.0
    )
    block = Block.Config(
        mixer_norm=norm,
        mixer=attention,
        mixer_out_norm=norm,
        ffn_norm=norm,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim, activation=config_for(gated, jax.nn.gelu)),
        ffn_out_norm=norm,
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        embedding_scale=dim**0.5,
        stack=Repeat.Config(layer=pattern_of(block, {"mixer.window": (window, None)}), num_layers=num_layers),
        norm=norm,
        head=None,
        logit_cap=30.0,
    )
