# SPDX-License-Identifier: Apache-2.0
"""A small decoder, written twice: as modules, and as plain JAX functions on the same parameters.

The tests and benchmarks of `dovetail.module` compare the two.

Shape letters: B batch, T time, S cache length, D model dim, H heads, K head dim.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED
from dovetail.module import Module, constant, normal
from support.loops import Context, Repeat


class Linear(Module):
    """Computes `x @ weight`."""

    class Config(Module.Config):
        in_dim: int = REQUIRED
        out_dim: int = REQUIRED
        axes: tuple[str | None, str | None] = (None, None)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (cfg.in_dim, cfg.out_dim), axes=cfg.axes)

    def forward(self, x: Array, context: Context | None = None) -> Array:
        return x @ self.weight


class RMSNorm(Module):
    """Scales to unit root-mean-square, then by a learned vector."""

    class Config(Module.Config):
        dim: int = REQUIRED
        eps: float = 1e-6

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("scale", (cfg.dim,), axes=("embed",), init=constant(1.0))

    def forward(self, x: Array) -> Array:
        return rms_norm(x, self.scale, self.cfg.eps)


class FeedForward(Module, abc.ABC):
    """The interface of the position-wise half of a block."""

    class Config(Module.Config):
        dim: int = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array, context: Context | None = None) -> Array: ...


class DenseFeedForward(FeedForward):
    """Computes `down(silu(up(x)))`, with dropout on the hidden activations."""

    class Config(FeedForward.Config):
        hidden_dim: int = REQUIRED
        dropout: float = 0.0
        up: Linear.Config = Linear.Config(axes=("embed", "mlp"))
        down: Linear.Config = Linear.Config(axes=("mlp", "embed"))

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.up = self.child("up", cfg.up.set(in_dim=cfg.dim, out_dim=cfg.hidden_dim))
        self.down = self.child("down", cfg.down.set(in_dim=cfg.hidden_dim, out_dim=cfg.dim))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        hidden = self.tag("hidden", jax.nn.silu(self.up(x)))
        rate = self.cfg.dropout
        if rate and self.training:
            kept = jax.random.bernoulli(self.rng("dropout"), 1 - rate, hidden.shape)
            hidden = jnp.where(kept, hidden / (1 - rate), 0)
        return self.down(hidden)


class NoisyFeedForward(FeedForward):
    """A feed-forward that reports: the size of its activations as a summary, and a loss on it."""

    class Config(FeedForward.Config):
        inner: FeedForward.Config = DenseFeedForward.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner.set(dim=cfg.dim))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        y = self.inner(x)
        self.summary("size", jnp.sqrt(jnp.mean(jnp.square(y))))
        self.add_loss("shrink", jnp.mean(jnp.square(y)))
        return y


class Attention(Module):
    """Causal self-attention, over a window of positions if one is given; keeps a cache where the call has state."""

    class Config(Module.Config):
        dim: int = REQUIRED
        num_heads: int = 2
        window: int | None = None
        query: Linear.Config = Linear.Config(axes=("embed", "heads"))
        key: Linear.Config = Linear.Config(axes=("embed", "heads"))
        value: Linear.Config = Linear.Config(axes=("embed", "heads"))
        out: Linear.Config = Linear.Config(axes=("heads", "embed"))

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.query = self.child("query", cfg.query.set(in_dim=cfg.dim, out_dim=cfg.dim))
        self.key = self.child("key", cfg.key.set(in_dim=cfg.dim, out_dim=cfg.dim))
        self.value = self.child("value", cfg.value.set(in_dim=cfg.dim, out_dim=cfg.dim))
        self.out = self.child("out", cfg.out.set(in_dim=cfg.dim, out_dim=cfg.dim))
        room = ("batch", "capacity", cfg.num_heads, cfg.dim // cfg.num_heads)
        for name in ("keys", "values"):
            self.state(name, room, axes=("batch", None, "heads", None))
        self.state("length", (), axes=(), dtype=jnp.int32)

    def forward(self, x: Array, context: Context | None = None) -> Array:
        q, k, v = (split_heads(proj(x), self.cfg.num_heads) for proj in (self.query, self.key, self.value))
        q, k, v = self.tag("qkv", (q, k, v))
        start = jnp.zeros((), jnp.int32)
        if self.stateful:
            start, k, v = self._extend(k, v)
        return self.out(attend(q, k, v, start, self.cfg.window))

    def _extend(self, k: Array, v: Array) -> tuple[Array, Array, Array]:
        start = self.length
        self.update("length", start + k.shape[1])
        self.update("keys", jax.lax.dynamic_update_slice_in_dim(self.keys, k, start, axis=1))
        self.update("values", jax.lax.dynamic_update_slice_in_dim(self.values, v, start, axis=1))
        return start, self.keys, self.values


class Block(Module):
    """A pre-norm transformer block."""

    class Config(Module.Config):
        dim: int = REQUIRED
        norm1: RMSNorm.Config = RMSNorm.Config()
        attention: Attention.Config = Attention.Config()
        norm2: RMSNorm.Config = RMSNorm.Config()
        ffn: FeedForward.Config = DenseFeedForward.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.norm1 = self.child("norm1", cfg.norm1.set(dim=cfg.dim))
        self.attention = self.child("attention", cfg.attention.set(dim=cfg.dim))
        self.norm2 = self.child("norm2", cfg.norm2.set(dim=cfg.dim))
        self.ffn = self.child("ffn", cfg.ffn.set(dim=cfg.dim))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        x = x + self.attention(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class Decoder(Module):
    """Token ids to logits; the stack is any module from `[B T D]` to `[B T D]`."""

    class Config(Module.Config):
        vocab_size: int = 32
        dim: int = REQUIRED
        stack: Module.Config = REQUIRED
        norm: RMSNorm.Config = RMSNorm.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("embedding", (cfg.vocab_size, cfg.dim), axes=("vocab", "embed"), init=normal(0.02))
        self.stack = self.child("stack", cfg.stack)
        self.norm = self.child("norm", cfg.norm.set(dim=cfg.dim))

    def forward(self, ids: Array) -> Array:
        return self.norm(self.stack(self.embedding[ids])) @ self.embedding.T


def decoder(
    num_layers: int = 3, dim: int = 8, hidden_dim: int = 16, num_heads: int = 2, **fields: Any
) -> Decoder.Config:
    """Returns the config of a decoder with a repeated block."""
    block = Block.Config(
        dim=dim, attention=Attention.Config(num_heads=num_heads), ffn=DenseFeedForward.Config(hidden_dim=hidden_dim)
    )
    return Decoder.Config(dim=dim, stack=Repeat.Config(layer=block, num_repeats=num_layers), **fields)


# The same network as functions.


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """Returns `x` with unit root-mean-square over its last axis, times `scale`."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps) * scale


def split_heads(x: Array, num_heads: int) -> Array:
    """Reshapes `[B T D]` to `[B T H K]`."""
    return x.reshape(*x.shape[:-1], num_heads, -1)


def attend(q: Array, k: Array, v: Array, start: Array, window: int | None) -> Array:
    """Returns `[B T D]`: causal attention of queries that stand at positions `start, start + 1, ...`."""
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / q.shape[-1] ** 0.5
    distance = start + jnp.arange(q.shape[1])[:, None] - jnp.arange(k.shape[1])
    seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.einsum("bhts,bshk->bthk", weights, v).reshape(*q.shape[:2], -1)


def plain_block(params: Any, x: Array, *, num_heads: int, window: int | None = None, eps: float = 1e-6) -> Array:
    """Computes `Block.forward` without modules."""
    attention, ffn = params["attention"], params["ffn"]
    h = rms_norm(x, params["norm1"]["scale"], eps)
    q, k, v = (split_heads(h @ attention[name]["weight"], num_heads) for name in ("query", "key", "value"))
    x = x + attend(q, k, v, jnp.zeros((), jnp.int32), window) @ attention["out"]["weight"]
    h = rms_norm(x, params["norm2"]["scale"], eps)
    return x + jax.nn.silu(h @ ffn["up"]["weight"]) @ ffn["down"]["weight"]


def plain_decoder(params: Any, ids: Array, *, num_heads: int, scan: bool) -> Array:
    """Computes `Decoder.forward` without modules, for stacked parameters."""
    x = params["embedding"][ids]
    stacked = params["stack"]["layer"]
    if scan:
        x, _ = jax.lax.scan(lambda x, p: (plain_block(p, x, num_heads=num_heads), None), x, stacked)
    else:
        for i in range(len(stacked["norm1"]["scale"])):
            x = plain_block(jax.tree.map(lambda leaf, i=i: leaf[i], stacked), x, num_heads=num_heads)
    return rms_norm(x, params["norm"]["scale"], 1e-6) @ params["embedding"].T
