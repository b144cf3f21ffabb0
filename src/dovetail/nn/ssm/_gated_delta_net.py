# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet: a state in which what is written at a key replaces what was there.

Reference: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024 (arXiv:2412.06464).

Shape letters: B batch, T time, D model dim, H value heads, G key heads, K key dim, V value dim.
"""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.ops import Mask, Support, gated_delta_rule

from .._context import Context
from .._conv import CausalConv
from .._linear import DenseLinear, Linear
from .._mixer import Mixer
from .._norm import Norm, RMSNorm
from ._documents import declare_memory, documents_of, log_rates, step_biases, supports_causal, whole_sequence


class GatedDeltaNet(Mixer):
    """The layer of Qwen3-Next: normed keys and queries, a decay and a strength of writing for each token and head.

    Where the call keeps state, that is the state after the last token, whatever their number.
    """

    class Config(Mixer.Config):
        renamed: ClassVar[Mapping[str, str]] = {"step": "delta"}
        num_heads: int = REQUIRED  # Of values.
        num_key_heads: int | None = None  # Of keys and queries, shared by heads of values; None: as many.
        key_head_dim: int = 128
        value_head_dim: int = 128
        query: Linear.Config = DenseLinear.Config()
        key: Linear.Config = DenseLinear.Config()
        value: Linear.Config = DenseLinear.Config()
        gate: Linear.Config = DenseLinear.Config()
        strength: Linear.Config = DenseLinear.Config()  # How far a value replaces what is there: sigmoid of this.
        delta: Linear.Config = DenseLinear.Config()  # How long the state decays: softplus of this.
        query_conv: CausalConv.Config = CausalConv.Config(bias=False)
        key_conv: CausalConv.Config = CausalConv.Config(bias=False)
        value_conv: CausalConv.Config = CausalConv.Config(bias=False)
        norm: Norm.Config = RMSNorm.Config()  # Over each head, before the gate.
        out: Linear.Config = DenseLinear.Config()
        chunk: int = 64  # Positions that are computed at once.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        for name in ("num_heads", "num_key_heads", "key_head_dim", "value_head_dim", "chunk"):
            if getattr(cfg, name) is not None and getattr(cfg, name) < 1:
                raise ConfigError(f"{self!r}: {name} is {getattr(cfg, name)}, expected at least 1.")
        heads, key_heads = cfg.num_heads, cfg.num_key_heads or cfg.num_heads
        if heads % key_heads:
            raise ConfigError(f"{self!r}: num_key_heads ({key_heads}) must divide num_heads ({heads}).")
        keys = (key_heads, cfg.key_head_dim), ("kv_heads", "head_dim")
        values = (heads, cfg.value_head_dim), ("heads", "head_dim")
        one = (heads,), ("heads",)
        shapes = {"query": keys, "key": keys, "value": values, "gate": values, "strength": one, "delta": one}
        linears: dict[str, Linear] = {}
        for name, (shape, axes) in shapes.items():
            ends = {"in_shape": (cfg.dim,), "in_axes": ("embed",), "out_shape": shape, "out_axes": axes}
            linears[name] = self.child(name, getattr(cfg, name).set(**ends))
        self.query, self.key, self.value, self.gate, self.strength, self.delta = linears.values()
        self.query_conv = self.child("query_conv", cfg.query_conv.set(shape=keys[0], axes=keys[1]))
        self.key_conv = self.child("key_conv", cfg.key_conv.set(shape=keys[0], axes=keys[1]))
        self.value_conv = self.child("value_conv", cfg.value_conv.set(shape=values[0], axes=values[1]))
        self.norm = self.child("norm", cfg.norm.set(dim=cfg.value_head_dim, axis="head_dim"))
        back = cfg.out.set(in_shape=values[0], in_axes=values[1], out_shape=(cfg.dim,), out_axes=("embed",))
        self.out = self.child("out", back)
        self._repeats = heads // key_heads
        self.param("log_rate", (heads,), axes=("heads",), init=log_rates, cast=False)
        self.param("step_bias", (heads,), axes=("heads",), init=step_biases, cast=False)
        declare_memory(self, (heads, cfg.key_head_dim, cfg.value_head_dim))

    @classmethod
    def supports(cls, mask: Mask) -> Support:
        return supports_causal(mask)

    def forward(self, x: Array, context: Context) -> Array:
        read = documents_of(self, context, x.shape[:2], self.segment if self.stateful else None)
        where = {"document": read.document, "count": read.length}
        x = self.constrain(read.only_real(x), "batch", "seq", None)
        query = whole_sequence(self, self.query_conv(whole_sequence(self, self.query(x)), **where))
        query = _unit(query) * self.cfg.key_head_dim**-0.5
        key = _unit(whole_sequence(self, self.key_conv(whole_sequence(self, self.key(x)), **where)))
        value = whole_sequence(self, self.value_conv(whole_sequence(self, self.value(x)), **where))
        strength = jax.nn.sigmoid(whole_sequence(self, self.strength(x)).astype(jnp.float32))
        step = jax.nn.softplus(whole_sequence(self, self.delta(x)).astype(jnp.float32) + self.step_bias)
        real = read.real[..., None]
        query, key, value, strength, step = self.tag("qkv", (query, key, value, strength, step))
        start = jnp.zeros((x.shape[0], value.shape[2], key.shape[-1], value.shape[-1]), jnp.float32)
        start = self.constrain(start, "batch", "state_heads", None, None)
        y, state = gated_delta_rule(
            jnp.repeat(query, self._repeats, axis=2),
            jnp.repeat(key, self._repeats, axis=2),
            value,
            jnp.where(real, -jnp.exp(self.log_rate) * step, 0.0),
            jnp.where(real, strength, 0.0),
            document=read.document,
            state=self.memory if self.stateful else start,
            chunk=self.cfg.chunk,
        )
        if self.stateful:
            self.update("memory", state)
            self.update("segment", read.segment.astype(jnp.int32))
        y = self.norm(self.constrain(whole_sequence(self, y), "batch", "seq", "heads", None), context)
        y = y * jax.nn.silu(self.gate(x).astype(jnp.float32))
        return self.constrain(self.out(self.tag("attended", y.astype(x.dtype))), "batch", "stream", None)


def _unit(x: Array) -> Array:
    """Scales to length 1 over the last dimension, in float32."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
