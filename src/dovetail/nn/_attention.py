# SPDX-License-Identifier: Apache-2.0
"""Attention layers: how a position gathers from others.

Shape letters: B batch, T time, S cache, D model dim, H query heads, G key heads, K head dim.
"""

import abc
from typing import Literal

import jax
from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module, constant
from dovetail.ops import AttentionKernel, BlockwiseAttention, Mask, SlidingWindow, Tokens, Written

from ._cache import Cache, DenseCache
from ._heads import check_positive, from_heads, head_shapes, to_heads
from ._linear import DenseLinear, Linear
from ._norm import Norm
from ._position_bias import PositionBias
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
        soft_cap: float | None = None  # Scores become soft_cap * tanh(score / soft_cap); None: they stay.
        sinks: bool = False  # A learned score for each head that joins the softmax but has no value.
        query: Linear.Config = DenseLinear.Config()
        key: Linear.Config = DenseLinear.Config()
        value: Linear.Config = DenseLinear.Config()
        gate: Linear.Config | None = None  # Its sigmoid multiplies what comes out of the heads.
        out: Linear.Config = DenseLinear.Config()
        query_norm: Norm.Config | None = None  # QK-norm, before positions are applied.
        key_norm: Norm.Config | None = None
        norm_over: Literal["head", "all_heads"] = "head"  # What a QK-norm takes as one vector.
        rotary: Rotary.Config = RoPE.Config()
        position_bias: PositionBias.Config | None = None  # Added to the scores.
        kernel: AttentionKernel.Config = BlockwiseAttention.Config()
        cache: Cache.Config = DenseCache.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        heads, kv_heads, width = head_shapes(self, cfg)
        check_positive(self, cfg, "window")
        if cfg.soft_cap is not None and cfg.soft_cap <= 0:
            raise ConfigError(f"{self!r}: soft_cap is {cfg.soft_cap}, expected a number above 0, or None.")
        self._scale = width**-0.5 if cfg.scale is None else cfg.scale
        self.query = self.child("query", to_heads(cfg.query, cfg.dim, heads, width))
        self.key = self.child("key", to_heads(cfg.key, cfg.dim, kv_heads, width, axis="kv_heads"))
        self.value = self.child("value", to_heads(cfg.value, cfg.dim, kv_heads, width, axis="kv_heads"))
        self.gate = self.child("gate", to_heads(cfg.gate, cfg.dim, heads, width)) if cfg.gate else None
        self.out = self.child("out", from_heads(cfg.out, heads, width, cfg.dim))

        def norm(name: str, norm: Norm.Config | None, num_heads: int, axis: str) -> Norm | None:
            shape = {"dim": width, "axis": "head_dim"}
            shape = shape if cfg.norm_over == "head" else {"dim": num_heads * width, "axis": axis}
            return self.child(name, norm.set(**shape)) if norm else None

        self.query_norm = norm("query_norm", cfg.query_norm, heads, "heads")
        self.key_norm = norm("key_norm", cfg.key_norm, kv_heads, "kv_heads")
        self.rotary = self.child("rotary", cfg.rotary.set(head_dim=width))
        bias = cfg.position_bias
        self.position_bias = self.child("position_bias", bias.set(num_heads=heads)) if bias else None
        if cfg.sinks:
            self.param("sink", (heads,), axes=("heads",), init=constant(0.0))
        self._kernel: AttentionKernel = cfg.kernel.build(path=f"{self.path}.kernel".removeprefix("."))
        self.cache = self.child("cache", cfg.cache)

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        x = self.lay(x, "batch", "seq", None)
        q, k, v = self._normed(self.query(x), self.query_norm), self._normed(self.key(x), self.key_norm), self.value(x)
        q, k = self.rotary(q, positions), self.rotary(k, positions)
        q = self.lay(q, "batch", "seq", "heads", None)
        k, v = (self.lay(each, "batch", "seq", "kv_heads", None) for each in (k, v))
        q, k, v = self.tag("qkv", (q, k, v))
        if self.cfg.window is not None:
            mask = mask & SlidingWindow(self.cfg.window)
        k_tokens = tokens
        if self.stateful:
            kept = self.cache({"k": k, "v": v}, tokens)
            q, k, v, k_tokens = kept.mark(q), kept.values["k"], kept.values["v"], kept.tokens
            mask = mask & Written()
        attended = self._kernel(
            q,
            k,
            v,
            mask=mask,
            q_tokens=tokens,
            k_tokens=k_tokens,
            scale=self._scale,
            aligned=not self.stateful,
            soft_cap=self.cfg.soft_cap,
            bias=None if self.position_bias is None else self.position_bias(),
            sinks=self.sink if self.cfg.sinks else None,
        )
        attended = self.tag("attended", self.lay(attended, "batch", "seq", "heads", None))
        if self.gate is not None:
            attended = attended * jax.nn.sigmoid(self.gate(x))
        return self.lay(self.out(attended), "batch", "stream", None)

    def _normed(self, x: Array, norm: Norm | None) -> Array:
        if norm is None:
            return x
        return norm(x) if self.cfg.norm_over == "head" else norm(x.reshape(*x.shape[:2], -1)).reshape(x.shape)
