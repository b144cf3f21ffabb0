# SPDX-License-Identifier: Apache-2.0
"""Granite 4.0 H, dense."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, GatedFeedForward, Mamba2, NoRotary, Repeat, RMSNorm


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
) -> CausalLM.Config:
    """Granite 4.0 H: Mamba 2 in most layers, attention without positions in the others, a feed-forward in each.

    Reference: IBM, Granite 4.0 Language Models, 2025 (github.com/ibm-granite/granite-4.0-language-models).

    Args:
        attention_at: the layer with attention among `period` layers, from 0.
    """
    norm = RMSNorm.Config(eps=1e-5)
    mamba = Block.Config(
        mixer_norm=norm,
        mixer=Mamba2.Config(head_dim=mamba_head_dim, state_dim=state_dim),
        ffn_norm=norm,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim),
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
