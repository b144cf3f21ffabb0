# SPDX-License-Identifier: Apache-2.0
"""Mamba 2: a state that decays at rates which depend on the token.

Reference: Dao and Gu, Transformers are SSMs, 2024 (arXiv:2405.21060), section 7.

Shape letters: B batch, T time, D model dim, H heads, P head dim, G groups, N state dim.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError
from dovetail.module import constant
from dovetail.ops import Mask, Support, state_space

from .._context import Context
from .._conv import CausalConv
from .._linear import DenseLinear, Linear
from .._mixer import Mixer
from .._norm import Norm, RMSNorm
from ._documents import declare_memory, documents_of, log_rates, step_biases, supports_causal, whole_sequence


class Mamba2(Mixer):
    """A state-space layer: keys write values into a state, queries read it.

    The paper's X, B and C are value, key and query here, its A is `-exp(log_rate)` and its D is `skip`.
    Where the call keeps state, that is the state after the last token, whatever their number.
    """

    class Config(Mixer.Config):
        renamed: ClassVar[Mapping[str, str]] = {"step": "delta"}
        num_heads: int | None = None  # None: as many as make 2 * dim.
        head_dim: int = 64
        num_groups: int = 1  # Of heads that share keys and queries.
        state_dim: int = 128  # Of keys and queries.
        gate: Linear.Config = DenseLinear.Config()
        value: Linear.Config = DenseLinear.Config()
        key: Linear.Config = DenseLinear.Config()
        query: Linear.Config = DenseLinear.Config()
        delta: Linear.Config = DenseLinear.Config()
        value_conv: CausalConv.Config = CausalConv.Config()
        key_conv: CausalConv.Config = CausalConv.Config()
        query_conv: CausalConv.Config = CausalConv.Config()
        norm: Norm.Config = RMSNorm.Config(eps=1e-5)  # After the gate.
        norm_over: Literal["all_heads", "group"] = "all_heads"  # What it takes as one vector.
        step_limit: tuple[float, float] | None = None  # The shortest and the longest step; None: any.
        out: Linear.Config = DenseLinear.Config()
        chunk: int = 128  # Positions that are computed at once.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        for name in ("num_heads", "head_dim", "num_groups", "state_dim", "chunk"):
            if getattr(cfg, name) is not None and getattr(cfg, name) < 1:
                raise ConfigError(f"{self!r}: {name} is {getattr(cfg, name)}, expected at least 1.")
        if cfg.num_heads is None and 2 * cfg.dim % cfg.head_dim:
            raise ConfigError(f"{self!r}: head_dim ({cfg.head_dim}) must divide 2 * dim ({2 * cfg.dim}).")
        heads = cfg.num_heads or 2 * cfg.dim // cfg.head_dim
        if heads % cfg.num_groups:
            raise ConfigError(f"{self!r}: num_groups ({cfg.num_groups}) must divide num_heads ({heads}).")
        if cfg.step_limit is not None and not 0 <= cfg.step_limit[0] < cfg.step_limit[1]:
            raise ConfigError(f"{self!r}: step_limit is {cfg.step_limit}, expected two numbers, 0 or more, that grow.")
        wide = (heads, cfg.head_dim), ("heads", "head_dim")
        narrow = (cfg.num_groups, cfg.state_dim), ("kv_heads", "head_dim")
        shapes = {"gate": wide, "value": wide, "key": narrow, "query": narrow, "delta": ((heads,), ("heads",))}
        linears: dict[str, Linear] = {}
        for name, (shape, axes) in shapes.items():
            ends = {"in_shape": (cfg.dim,), "in_axes": ("embed",), "out_shape": shape, "out_axes": axes}
            linears[name] = self.child(name, getattr(cfg, name).set(**ends))
        self.gate, self.value, self.key, self.query, self.delta = linears.values()
        self.value_conv = self.child("value_conv", cfg.value_conv.set(shape=wide[0], axes=wide[1]))
        self.key_conv = self.child("key_conv", cfg.key_conv.set(shape=narrow[0], axes=narrow[1]))
        self.query_conv = self.child("query_conv", cfg.query_conv.set(shape=narrow[0], axes=narrow[1]))
        norm = {"axis": "heads", "groups": cfg.num_groups if cfg.norm_over == "group" else 1}
        self.norm = self.child("norm", cfg.norm.set(dim=heads * cfg.head_dim, **norm))
        back = cfg.out.set(in_shape=wide[0], in_axes=wide[1], out_shape=(cfg.dim,), out_axes=("embed",))
        self.out = self.child("out", back)
        for name, init in {"log_rate": log_rates, "step_bias": step_biases, "skip": constant(1.0)}.items():
            self.param(name, (heads,), axes=("heads",), init=init, cast=False)
        declare_memory(self, (heads, cfg.head_dim, cfg.state_dim))

    @classmethod
    def supports(cls, mask: Mask) -> Support:
        return supports_causal(mask)

    def forward(self, x: Array, context: Context) -> Array:
        read = documents_of(self, context, x.shape[:2], self.segment if self.stateful else None)
        where = {"document": read.document, "count": read.length}
        x = self.constrain(read.only_real(x), "batch", "seq", None)
        value = whole_sequence(self, self.value_conv(whole_sequence(self, self.value(x)), **where))
        key = whole_sequence(self, self.key_conv(whole_sequence(self, self.key(x)), **where))
        query = whole_sequence(self, self.query_conv(whole_sequence(self, self.query(x)), **where))
        step = jax.nn.softplus(whole_sequence(self, self.delta(x)).astype(jnp.float32) + self.step_bias)
        step = step if self.cfg.step_limit is None else jnp.clip(step, *self.cfg.step_limit)
        step = whole_sequence(self, jnp.where(read.real[..., None], step, 0.0))
        value, key, query, step = self.tag("qkv", (value, key, query, step))
        start = jnp.zeros((x.shape[0], *value.shape[2:], key.shape[-1]), jnp.float32)
        start = self.constrain(start, "batch", "state_heads", None, None)
        y, state = state_space(
            value,
            step,
            -jnp.exp(self.log_rate),
            key,
            query,
            document=read.document,
            state=self.memory if self.stateful else start,
            chunk=self.cfg.chunk,
        )
        if self.stateful:
            self.update("memory", state)
            self.update("segment", read.segment.astype(jnp.int32))
        y = whole_sequence(self, y + self.skip[:, None] * value.astype(jnp.float32))
        y = self.constrain(y, "batch", "seq", "heads", None)
        y = y * jax.nn.silu(self.gate(x).astype(jnp.float32))
        normed = self.norm(y.reshape(*y.shape[:2], -1), context).reshape(y.shape)
        return self.constrain(self.out(self.tag("attended", normed.astype(x.dtype))), "batch", "stream", None)
