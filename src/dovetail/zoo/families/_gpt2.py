# SPDX-License-Identifier: Apache-2.0
"""GPT-2."""

import jax

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.module import normal
from dovetail.nn import (
    Attention,
    Block,
    DenseFeedForward,
    DenseLinear,
    LayerNorm,
    LearnedPosition,
    NoRotary,
    Repeat,
)


def gpt2(
    *, vocab_size: int = 50_257, max_length: int = 1024, dim: int, num_layers: int, num_heads: int, dropout: float = 0.1
) -> CausalLM.Config:
    """GPT-2: LayerNorm, learned positions, biases everywhere, tied embedding.

    Reference: Radford et al., Language Models are Unsupervised Multitask Learners, 2019, and its code.
    """
    linear = DenseLinear.Config(bias=True, init=config_for(normal, stddev=0.02))
    # Of layers that add to the residual: smaller the more of them there are.
    added = linear.set(init=config_for(normal, stddev=0.02 / (2 * num_layers) ** 0.5))
    attention = Attention.Config(
        num_heads=num_heads, query=linear, key=linear, value=linear, out=added, rotary=NoRotary.Config()
    )
    block = Block.Config(
        mixer_norm=LayerNorm.Config(),
        mixer=attention,
        ffn_norm=LayerNorm.Config(),
        ffn=DenseFeedForward.Config(hidden_dim=4 * dim, activation=jax.nn.gelu, up=linear, down=added),
    ).set_in("dropout.rate", dropout)
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        position=LearnedPosition.Config(max_length=max_length),
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        norm=LayerNorm.Config(),
        head=None,
    ).set_in("dropout.rate", dropout)
