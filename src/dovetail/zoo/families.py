# SPDX-License-Identifier: Apache-2.0
"""Model families as configs: sizes are data, a family is one function."""

import jax

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.module import normal
from dovetail.nn import (
    Attention,
    DenseFeedForward,
    DenseLinear,
    Embedding,
    GatedFeedForward,
    LayerNorm,
    LearnedPosition,
    NoRotary,
    PreNormBlock,
    RepeatedBlock,
    RMSNorm,
    RoPE,
)


def llama(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    theta: float = 10_000.0,
    eps: float = 1e-5,
    tied: bool = False,
) -> CausalLM.Config:
    """Llama: RMSNorm, rotary positions, grouped-query attention, gated feed-forward, no biases.

    Reference: Touvron et al., Llama 2: Open Foundation and Fine-Tuned Chat Models, 2023 (arXiv:2307.09288).
    """
    norm = RMSNorm.Config(eps=eps)
    block = PreNormBlock.Config(
        mixer_norm=norm,
        mixer=Attention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads, rotary=RoPE.Config(theta=theta)),
        ffn_norm=norm,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim),
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=RepeatedBlock.Config(layer=block, num_layers=num_layers),
        norm=norm,
        head=None if tied else DenseLinear.Config(),
    )


def gpt2(
    *, vocab_size: int = 50_257, max_length: int = 1024, dim: int, num_layers: int, num_heads: int, dropout: float = 0.1
) -> CausalLM.Config:
    """GPT-2: LayerNorm, learned positions, biases everywhere, tied embedding.

    Reference: Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    """
    linear = DenseLinear.Config(bias=True, init=config_for(normal, stddev=0.02))
    # Of layers that add to the residual: smaller the more of them there are.
    added = linear.set(init=config_for(normal, stddev=0.02 / (2 * num_layers) ** 0.5))
    attention = Attention.Config(
        num_heads=num_heads, query=linear, key=linear, value=linear, out=added, rotary=NoRotary.Config()
    )
    block = PreNormBlock.Config(
        mixer_norm=LayerNorm.Config(),
        mixer=attention,
        ffn_norm=LayerNorm.Config(),
        ffn=DenseFeedForward.Config(hidden_dim=4 * dim, activation=jax.nn.gelu, up=linear, down=added),
    ).set_in("dropout.rate", dropout)
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        embedding=Embedding.Config(init=config_for(normal, stddev=0.02)),
        position=LearnedPosition.Config(max_length=max_length),
        stack=RepeatedBlock.Config(layer=block, num_layers=num_layers),
        norm=LayerNorm.Config(),
        head=None,
    ).set_in("dropout.rate", dropout)
