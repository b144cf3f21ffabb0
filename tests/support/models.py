# SPDX-License-Identifier: Apache-2.0
"""Small language models for tests, and layers that fill the interfaces of `dovetail.nn` in another way.

A test that swaps one of these in shows that an interface is enough: nobody else knows the class.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.models import CausalLM
from dovetail.module import Module, ParamSpec, constant, specs
from dovetail.nn import (
    Attention,
    Block,
    DenseFeedForward,
    DenseLinear,
    GatedDeltaNet,
    GatedFeedForward,
    LayerNorm,
    LearnedPosition,
    Linear,
    Mamba2,
    Mixer,
    MixerBlock,
    NoRotary,
    Repeat,
    Stack,
)
from dovetail.ops import Mask, Tokens


def lm(
    *, num_layers: int = 2, loop: Literal["scan", "unroll"] = "scan", attention: Any = None, **fields: Any
) -> CausalLM.Config:
    """Returns a Llama-like model of 11 words and 8 dimensions, with groups of two query heads."""
    mixer = Attention.Config(num_heads=4, num_kv_heads=2).set(**attention or {})
    layer = Block.Config(mixer=mixer, ffn=GatedFeedForward.Config(hidden_dim=12))
    stack = Repeat.Config(layer=layer, num_layers=num_layers, loop=loop)
    return CausalLM.Config(**{"vocab_size": 11, "dim": 8, "stack": stack, **fields})


def gpt2(vocab_size=11, dim=8, num_layers=2, num_heads=2, max_length=9, hidden_dim=12) -> CausalLM.Config:
    """Returns a model of the shape of GPT-2: learned positions, layer norm, biases, tied embedding."""
    linear = DenseLinear.Config(bias=True)
    mixer = Attention.Config(
        num_heads=num_heads, query=linear, key=linear, value=linear, out=linear, rotary=NoRotary.Config()
    )
    norm = LayerNorm.Config()
    ffn = DenseFeedForward.Config(hidden_dim=hidden_dim, up=linear, down=linear)
    layer = Block.Config(mixer=mixer, ffn=ffn, mixer_norm=norm, ffn_norm=norm)
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        position=LearnedPosition.Config(max_length=max_length),
        stack=Repeat.Config(layer=layer, num_layers=num_layers),
        norm=norm,
        head=None,
    )


def hybrid(**fields: Any) -> CausalLM.Config:
    """Returns a model of four layers: attention, Mamba 2, Gated DeltaNet, and attention again."""
    attention = Block.Config(mixer=Attention.Config(num_heads=2), ffn=DenseFeedForward.Config(hidden_dim=12))
    mamba = MixerBlock.Config(mixer=Mamba2.Config(num_heads=4, head_dim=2, state_dim=3, chunk=3))
    delta = MixerBlock.Config(mixer=GatedDeltaNet.Config(num_heads=2, key_head_dim=3, value_head_dim=2, chunk=3))
    return lm(stack=Repeat.Config(layer=(attention, mamba, delta), num_layers=4), **fields)


def random_params(module: Module, seed: int = 0) -> Any:
    """Returns random parameters, also where `init` makes zeros and ones, without a program for each shape."""
    rng = np.random.default_rng(seed)

    def one(spec: ParamSpec) -> Array:
        size = spec.fan_in**-0.5 if spec.in_dims else 0.5
        return jnp.asarray((size * rng.standard_normal(spec.shape)).astype(np.float32))

    return jax.tree.map(one, specs(module), is_leaf=lambda x: isinstance(x, ParamSpec))


class LowRank(Linear):
    """A product of two maps with few dimensions in between."""

    class Config(Linear.Config):
        rank: int = 2
        a: Linear.Config = DenseLinear.Config()
        b: Linear.Config = DenseLinear.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        ends: dict[str, Any] = {"out_shape": (cfg.rank,), "out_axes": (None,)}
        self.a = self.child("a", cfg.a.set(in_shape=cfg.in_shape, in_axes=cfg.in_axes, **ends))
        ends = {"in_shape": (cfg.rank,), "in_axes": (None,)}
        self.b = self.child("b", cfg.b.set(out_shape=cfg.out_shape, out_axes=cfg.out_axes, **ends))

    def forward(self, x: Array) -> Array:
        return self.b(self.a(x))

    def matrix(self) -> Array:
        return jnp.tensordot(self.a.matrix(), self.b.matrix(), axes=1)


class Previous(Mixer):
    """Gives each token the one before it in its document, times a learned number; keeps the last one as state."""

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("scale", (cfg.dim,), axes=("embed",), init=constant(0.5))
        self.state_var("last")

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        segment = jnp.ones(x.shape[:2], jnp.int32) if tokens.segment is None else tokens.segment
        last = {"x": jnp.zeros_like(x[:, :1]), "segment": jnp.full_like(segment[:, :1], -1)}
        if self.stateful:
            last = self.last if self.has_state("last") else last
            self.update("last", {"x": x[:, -1:], "segment": segment[:, -1:]})
        before = jnp.concatenate([last["x"], x[:, :-1]], axis=1)
        same = jnp.concatenate([last["segment"], segment[:, :-1]], axis=1) == segment
        return jnp.where(same[:, :, None], before, 0) * self.scale


class Pair(Stack):
    """Two different blocks, one after the other."""

    class Config(Stack.Config):
        first: Block.Config = MixerBlock.Config(mixer=Previous.Config())
        second: Block.Config = MixerBlock.Config(mixer=Previous.Config())

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.first = self.child("first", cfg.first.set(dim=cfg.dim))
        self.second = self.child("second", cfg.second.set(dim=cfg.dim))

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        x = self.first(x, tokens=tokens, positions=positions, mask=mask)
        return self.second(x, tokens=tokens, positions=positions, mask=mask)
