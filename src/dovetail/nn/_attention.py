# SPDX-License-Identifier: Apache-2.0
"""Attention layers: how a position gathers from others.

Shape letters: B batch, T time, S cache, D model dim, H query heads, G key heads, K head dim.
"""

import abc
import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module, ModuleError
from dovetail.ops import EMPTY, AttentionKernel, BlockwiseAttention, Mask, SlidingWindow, Tokens, Written

from ._linear import DenseLinear, Linear
from ._norm import Norm
from ._rotary import RoPE, Rotary


class Mixer(Module, abc.ABC):
    """The interface of layers in which positions see each other: attention, state-space layers and others."""

    class Config(Module.Config):
        dim: int = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        """Maps `[B, T, D]` to the same shape.

        Args:
            tokens: place and document of each token, for masks.
            positions: `[B or 1, T]`, counted from the start of the document.
            mask: what all layers of the model obey; a layer may see less.
        """


class Attention(Mixer):
    """Grouped-query attention: `num_kv_heads` heads of keys and values shared by groups of query heads.

    Equal numbers of heads give multi-head attention, one key head multi-query attention. Where the call keeps state,
    keys and values are cached.
    """

    class Config(Mixer.Config):
        num_heads: int = REQUIRED
        num_kv_heads: int | None = None  # None: as many as num_heads.
        head_dim: int | None = None  # None: dim / num_heads.
        window: int | None = None  # Positions that a query sees, itself included; None: all.
        scale: float | None = None  # Of the scores; None: head_dim ** -0.5.
        query: Linear.Config = DenseLinear.Config()
        key: Linear.Config = DenseLinear.Config()
        value: Linear.Config = DenseLinear.Config()
        out: Linear.Config = DenseLinear.Config()
        query_norm: Norm.Config | None = None  # QK-norm: over head_dim, before positions are applied.
        key_norm: Norm.Config | None = None
        rotary: Rotary.Config = RoPE.Config()
        kernel: AttentionKernel.Config = BlockwiseAttention.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        for name in ("num_heads", "num_kv_heads", "head_dim", "window"):
            if getattr(cfg, name) is not None and getattr(cfg, name) < 1:
                raise ConfigError(f"{self!r}: {name} is {getattr(cfg, name)}, expected at least 1.")
        heads, kv_heads, width = (
            cfg.num_heads,
            cfg.num_kv_heads or cfg.num_heads,
            cfg.head_dim or cfg.dim // cfg.num_heads,
        )
        if heads % kv_heads:
            raise ConfigError(f"{self!r}: num_kv_heads ({kv_heads}) must divide num_heads ({heads}).")
        if cfg.head_dim is None and cfg.dim % heads:
            raise ConfigError(f"{self!r}: num_heads ({heads}) must divide dim ({cfg.dim}), or set head_dim.")
        self._head_dim = width

        def projected(to: Linear.Config, num_heads: int, axis: str) -> Linear.Config:
            return to.set(
                in_shape=(cfg.dim,), in_axes=("embed",), out_shape=(num_heads, width), out_axes=(axis, "head_dim")
            )

        self.query = self.child("query", projected(cfg.query, heads, "heads"))
        self.key = self.child("key", projected(cfg.key, kv_heads, "kv_heads"))
        self.value = self.child("value", projected(cfg.value, kv_heads, "kv_heads"))
        back = cfg.out.set(
            in_shape=(heads, width), in_axes=("heads", "head_dim"), out_shape=(cfg.dim,), out_axes=("embed",)
        )
        self.out = self.child("out", back)
        norm = {"dim": width, "axis": "head_dim"}
        self.query_norm = self.child("query_norm", cfg.query_norm.set(**norm)) if cfg.query_norm else None
        self.key_norm = self.child("key_norm", cfg.key_norm.set(**norm)) if cfg.key_norm else None
        self.rotary = self.child("rotary", cfg.rotary.set(head_dim=width))
        self._kernel: AttentionKernel = cfg.kernel.build(path=f"{self.path}.kernel".removeprefix("."))
        self.state_var("cache")

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.query_norm is not None:
            q = self.query_norm(q)
        if self.key_norm is not None:
            k = self.key_norm(k)
        q, k = self.rotary(q, positions), self.rotary(k, positions)
        q, k, v = self.tag("qkv", (q, k, v))
        if self.cfg.window is not None:
            mask = mask & SlidingWindow(self.cfg.window)
        k_tokens = tokens
        if self.stateful:
            k, v, k_tokens = self._cached(k, v, tokens)
            mask = mask & Written()
        scale = self._head_dim**-0.5 if self.cfg.scale is None else self.cfg.scale
        attended = self._kernel(
            q, k, v, mask=mask, q_tokens=tokens, k_tokens=k_tokens, scale=scale, aligned=not self.stateful
        )
        return self.out(self.tag("attended", attended))

    def _cached(self, k: Array, v: Array, tokens: Tokens) -> tuple[Array, Array, Tokens]:
        """Writes keys, values and tokens to their places in the cache, and returns all of it."""
        shape = k.shape[:2]
        index = jnp.broadcast_to(tokens.index, shape)
        segment = jnp.ones(shape, jnp.int32) if tokens.segment is None else jnp.broadcast_to(tokens.segment, shape)
        prefix = jnp.zeros(shape, bool) if tokens.prefix is None else jnp.broadcast_to(tokens.prefix, shape)
        news = {"k": k, "v": v, "index": index, "segment": segment, "prefix": prefix}
        if self.has_state("cache"):
            cache = self.cache
        else:
            if shape[1] > self.capacity:
                raise ModuleError(f"{self!r}: {shape[1]} tokens do not fit into a capacity of {self.capacity}.")
            cache = {
                name: jnp.zeros((shape[0], self.capacity, *new.shape[2:]), new.dtype) for name, new in news.items()
            }
            cache["index"] = jnp.full_like(cache["index"], EMPTY)
        write = jax.vmap(lambda old, new, at: old.at[at].set(new, mode="drop"))
        cache = {name: write(cache[name], new, index) for name, new in news.items()}
        self.update("cache", cache)
        # A token beyond the capacity would be lost: nan says so, as nothing else can in a compiled program.
        lost = jnp.any((index >= cache["index"].shape[1]) & (index != EMPTY), axis=1)[:, None, None, None]
        known = Tokens(cache["index"], cache["segment"], cache["prefix"])
        known = dataclasses.replace(known, segment=None) if tokens.segment is None else known
        return cache["k"], jnp.where(lost, jnp.nan, cache["v"]).astype(v.dtype), known
