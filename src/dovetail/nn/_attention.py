# SPDX-License-Identifier: Apache-2.0
"""Attention layers: how a position gathers from others.

Shape letters: B batch, T time, S keys, D model dim, H query heads, G key heads, K head dim.
"""

import abc
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module, ModuleError, constant
from dovetail.ops import AttentionKernel, BlockwiseAttention, SlidingWindow, Written

from ._cache import Cache, DenseCache, View
from ._context import Context
from ._heads import check_positive, from_heads, head_shapes, to_heads
from ._linear import DenseLinear, Linear
from ._mixer import Mixer
from ._norm import Norm
from ._position_bias import PositionBias
from ._rotary import RoPE, Rotary


class AttentionVariant(Module, abc.ABC):
    """The interface between the maps of `Attention` and its kernel: a variant changes what it is about, and no more.

    `heads` comes before the cache, `view` between cache and kernel, `result` before the map back to the model. Each is
    the identity unless a variant says otherwise.
    """

    class Config(Module.Config):
        dim: int = REQUIRED  # These are set by the attention.
        num_heads: int = REQUIRED
        num_kv_heads: int = REQUIRED
        head_dim: int = REQUIRED

    def heads(self, q: Array, k: Array, v: Array, x: Array, context: Context) -> tuple[Array, Array, Array]:
        """Maps queries `[B, T, H, K]`, keys and values `[B, T, G, K]` to those to use; `x` is what they are made of.

        Keys and values keep their shapes, for which the cache is declared; `view` may change them after it.
        """
        return q, k, v

    def view(self, view: View | None, context: Context) -> View:
        """Returns what the queries attend to; None: the attention has no keys and values of its own.

        Numbers of heads and dims may change: the kernel wants as many keys as values, and H a multiple of them.
        """
        if view is None:
            raise ModuleError(f"{self!r}: there are no keys. Set key and value of the attention, or bring a view.")
        return view

    def result(self, attended: Array, x: Array, context: Context) -> Array:
        """Maps what comes out of the kernel to `[B, T, H, K]`."""
        return attended


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
        soft_cap: float | None = None  # Scores become soft_cap * tanh(score / soft_cap); None: they stay.
        sinks: bool = False  # A learned score for each head that joins the softmax but has no value.
        query: Linear.Config = DenseLinear.Config()
        key: Linear.Config | None = DenseLinear.Config()  # None, as is value: the variant brings keys and values.
        value: Linear.Config | None = DenseLinear.Config()
        gate: Linear.Config | None = None  # Its sigmoid multiplies what comes out of the heads.
        out: Linear.Config = DenseLinear.Config()
        query_norm: Norm.Config | None = None  # QK-norm, before positions are applied.
        key_norm: Norm.Config | None = None
        # What a QK-norm takes as one vector; "each_head" is "head" with parameters of its own for each.
        norm_over: Literal["head", "each_head", "all_heads"] = "head"
        clip: float | None = None  # Queries, keys and values stay between -clip and clip, before positions; None: any.
        rotary: Rotary.Config = RoPE.Config()
        position_bias: PositionBias.Config | None = None  # Added to the scores.
        variant: AttentionVariant.Config | None = None  # What is done otherwise between the maps and the kernel.
        kernel: AttentionKernel.Config = BlockwiseAttention.Config()
        cache: Cache.Config = DenseCache.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        heads, kv_heads, width = head_shapes(self, cfg)
        _check(self, cfg)
        self._scale = width**-0.5 if cfg.scale is None else cfg.scale
        self.query = self.child("query", to_heads(cfg.query, cfg.dim, heads, width))
        self.key = self.value = None
        if cfg.key and cfg.value:
            self.key = self.child("key", to_heads(cfg.key, cfg.dim, kv_heads, width, axis="kv_heads"))
            self.value = self.child("value", to_heads(cfg.value, cfg.dim, kv_heads, width, axis="kv_heads"))
            entry, axes = (kv_heads, width), ("kv_heads", "head_dim")
            kept = {"entries": {"k": entry, "v": entry}, "axes": {"k": axes, "v": axes}}
            self.cache = self.child("cache", cfg.cache.set(**kept, window=cfg.window))
        self.gate = self.child("gate", to_heads(cfg.gate, cfg.dim, heads, width)) if cfg.gate else None
        self.out = self.child("out", from_heads(cfg.out, heads, width, cfg.dim))

        def norm(name: str, norm: Norm.Config | None, num_heads: int, axis: str) -> Norm | None:
            shape = {"dim": width, "axis": "head_dim"}
            if cfg.norm_over != "head":
                groups = num_heads if cfg.norm_over == "each_head" else 1
                shape = {"dim": num_heads * width, "axis": axis, "groups": groups}
            return self.child(name, norm.set(**shape)) if norm else None

        self.query_norm = norm("query_norm", cfg.query_norm, heads, "heads")
        self.key_norm = norm("key_norm", cfg.key_norm, kv_heads, "kv_heads")
        self.rotary = self.child("rotary", cfg.rotary.set(head_dim=width))
        bias = cfg.position_bias
        self.position_bias = self.child("position_bias", bias.set(num_heads=heads)) if bias else None
        sizes = {"dim": cfg.dim, "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": width}
        self.variant = self.child("variant", cfg.variant.set(**sizes)) if cfg.variant else None
        if cfg.sinks:
            self.param("sink", (heads,), axes=("heads",), init=constant(0.0))
        self._kernel: AttentionKernel = cfg.kernel.build(path=f"{self.path}.kernel".removeprefix("."))

    def forward(self, x: Array, context: Context) -> Array:
        x = self.constrain(x, "batch", "seq", None)
        q, k, v = self._heads(x, context)
        view = None if k is None or v is None else self._view(k, v, context)
        if self.variant is not None:
            view = self.variant.view(view and view.plain(x.dtype), context)  # It may change keys and values.
        assert view is not None, "checked when the attention is built"
        attended = self._attended(q, view, context)
        if self.variant is not None:
            attended = self.variant.result(attended, x, context)
        attended = self.tag("attended", self.constrain(attended, "batch", "seq", "heads", None))
        if self.gate is not None:
            attended = attended * jax.nn.sigmoid(self.gate(x))
        return self.constrain(self.out(attended), "batch", "stream", None)

    def _heads(self, x: Array, context: Context) -> tuple[Array, Array | None, Array | None]:
        """Returns queries, and keys and values if this attention has any."""
        if self.key is None or self.value is None:
            q = self.rotary(self._made(self.query, x, self.query_norm, context), context.positions)
            return self.tag("qkv", self.constrain(q, "batch", "seq", "heads", None)), None, None
        q = self._made(self.query, x, self.query_norm, context)
        k = self._made(self.key, x, self.key_norm, context)
        v = self._made(self.value, x, None, context)
        q, k = self.rotary(q, context.positions), self.rotary(k, context.positions)
        if self.variant is not None:
            q, k, v = self.variant.heads(q, k, v, x, context)
        q = self.constrain(q, "batch", "seq", "heads", None)
        k, v = (self.constrain(each, "batch", "seq", "kv_heads", None) for each in (k, v))
        return self.tag("qkv", (q, k, v))

    def _view(self, k: Array, v: Array, context: Context) -> View:
        """Returns the keys and values of all tokens so far."""
        values = {"k": k, "v": v}
        return self.cache(values, context.tokens) if self.stateful else View(values, context.tokens, aligned=True)

    def _attended(self, q: Array, view: View, context: Context) -> Array:
        mask = context.mask if self.cfg.window is None else context.mask & SlidingWindow(self.cfg.window)
        return self._kernel(
            q,
            view.values["k"],
            view.values["v"],
            mask=mask if view.aligned else mask & Written(),
            q_tokens=context.tokens,
            k_tokens=view.tokens,
            pages=view.pages,
            pairs=view.pairs,
            scales=view.scales_of("k", "v"),
            scale=self._scale,
            aligned=view.aligned,
            soft_cap=self.cfg.soft_cap,
            bias=None if self.position_bias is None else self.position_bias(),
            sinks=self.sink if self.cfg.sinks else None,
        )

    def _made(self, to: Linear, x: Array, norm: Norm | None, context: Context) -> Array:
        """Returns heads `[B, T, H, K]`: mapped, normed and clipped, as far as there are norm and clip."""
        y = to(x)
        if norm is not None:
            flat = y if self.cfg.norm_over == "head" else y.reshape(*y.shape[:2], -1)
            y = norm(flat, context).reshape(y.shape)
        return y if self.cfg.clip is None else jnp.clip(y, -self.cfg.clip, self.cfg.clip)


def _check(attention: Attention, cfg: Attention.Config) -> None:
    check_positive(attention, cfg, "window")
    for name in ("soft_cap", "clip"):
        if (limit := getattr(cfg, name)) is not None and limit <= 0:
            raise ConfigError(f"{attention!r}: {name} is {limit}, expected a number above 0, or None.")
    if (cfg.key is None) != (cfg.value is None):
        raise ConfigError(f"{attention!r}: one of key and value is None. Set both, or none.")
    if cfg.key is None and (cfg.variant is None or cfg.key_norm is not None):
        raise ConfigError(
            f"{attention!r}: key and value are None, so a variant must bring a view, and there is no key to norm.\n"
            "  Set variant, and key_norm=None."
        )
