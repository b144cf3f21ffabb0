# SPDX-License-Identifier: Apache-2.0
"""Small language models for tests, and layers that fill the interfaces of `dovetail.nn` in another way.

A test that swaps one of these in shows that an interface is enough: nobody else knows the class.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.models import CausalLM
from dovetail.module import Module, ParamSpec, constant, merged, run_specs, specs
from dovetail.nn import (
    Attention,
    AttentionVariant,
    Block,
    Connection,
    Context,
    DenseFeedForward,
    DenseLinear,
    GatedDeltaNet,
    GatedFeedForward,
    Layer,
    LayerNorm,
    LearnedPosition,
    Linear,
    Mamba2,
    Mixer,
    NoRotary,
    Repeat,
    View,
)
from dovetail.ops import Causal, Mask, Tokens


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
    mamba = mixer_only(Mamba2.Config(num_heads=4, head_dim=2, state_dim=3, chunk=3))
    delta = mixer_only(GatedDeltaNet.Config(num_heads=2, key_head_dim=3, value_head_dim=2, chunk=3))
    return lm(stack=Repeat.Config(layer=(attention, mamba, delta), num_layers=4), **fields)


def mixer_only(mixer: Mixer.Config) -> Block.Config:
    """Returns a block without a feed-forward."""
    return Block.Config(mixer=mixer, ffn=None, ffn_norm=None)


def context(
    time: int, *, segments: Array | None = None, positions: Array | None = None, mask: Mask | None = None, **fields: Any
) -> Context:
    """Returns the context of rows of so many tokens from the first on, causal unless a mask is given."""
    index = jnp.arange(time, dtype=jnp.int32)[None]
    return Context(Tokens(index, segments), index if positions is None else positions, mask or Causal(), **fields)


def random_params(module: Module, seed: int = 0) -> Any:
    """Returns random parameters, also where `init` makes zeros and ones, without a program for each shape."""
    return _random(specs(module), seed)


def random_values(module: Module, seed: int = 0) -> Any:
    """Returns random parameters, and, with them, a random state of the run."""
    return merged(random_params(module, seed), _random(run_specs(module), seed + 1))


def _random(tree: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)

    def one(spec: ParamSpec) -> Array:
        size = spec.fan_in**-0.5 if spec.in_dims else 0.5
        return jnp.asarray((size * rng.standard_normal(spec.shape)).astype(np.float32))

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, ParamSpec))


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
        self.state("last", ("batch", 1, cfg.dim), axes=("batch", None, None))
        self.state("last_segment", ("batch", 1), axes=("batch", None), dtype=jnp.int32, init=-1)

    def forward(self, x: Array, context: Context) -> Array:
        given = context.tokens.segment
        segment = jnp.broadcast_to(jnp.ones((), jnp.int32) if given is None else given, x.shape[:2])
        last, last_segment = jnp.zeros_like(x[:, :1]), jnp.full_like(segment[:, :1], -1)
        if self.stateful:
            last, last_segment = self.last.astype(x.dtype), self.last_segment
            self.update("last", x[:, -1:].astype(self.last.dtype))
            self.update("last_segment", segment[:, -1:])
        before = jnp.concatenate([last, x[:, :-1]], axis=1)
        same = jnp.concatenate([last_segment, segment[:, :-1]], axis=1) == segment
        return jnp.where(same[:, :, None], before, 0) * self.scale


class Pair(Layer):
    """Two different layers, one after the other."""

    class Config(Layer.Config):
        first: Layer.Config = mixer_only(Previous.Config())
        second: Layer.Config = mixer_only(Previous.Config())

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.first = self.child("first", cfg.first.set(dim=cfg.dim))
        self.second = self.child("second", cfg.second.set(dim=cfg.dim))

    def forward(self, x: Array, context: Context) -> Array:
        return self.second(self.first(x, context), context.later(self.published))


class Interpolated(Connection):
    """Moves the stream towards what a branch makes, on the unit sphere, as in nGPT (arXiv:2410.01131)."""

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("rate", (cfg.dim,), axes=("embed",), init=constant(0.05))

    def read(self, h: Array, context: Context) -> Array:
        return h

    def write(self, h: Array, y: Array, context: Context) -> Array:
        return _unit(h + self.rate * (_unit(y) - h))


def _unit(x: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-12)


class Differential(AttentionVariant):
    """The difference of two attentions to values that two heads have together (arXiv:2410.05258).

    Head 2i attends, and what head 2i + 1 finds is taken off, with a learned weight for each pair.
    """

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (cfg.num_heads // 2,), axes=("heads",), init=constant(0.5))

    def view(self, view: View | None, context: Context) -> View:
        seen = super().view(view, context)
        v = seen.values["v"]
        pairs = v.reshape(*v.shape[:-2], -1, 2 * v.shape[-1])
        return dataclasses.replace(seen, values={**seen.values, "v": jnp.repeat(pairs, 2, axis=-2)})

    def result(self, attended: Array, x: Array, context: Context) -> Array:
        first, second = attended[:, :, ::2], attended[:, :, 1::2]
        both = first - self.weight[:, None] * second
        return both.reshape(*both.shape[:2], 2 * both.shape[2], -1)
