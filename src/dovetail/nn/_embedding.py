# SPDX-License-Identifier: Apache-2.0
"""Embeddings of tokens and of positions."""

import abc

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError, FunctionConfig, config_for
from dovetail.module import Init, Module, normal
from dovetail.ops import rotary_frequencies


def _rows(table: Array, index: Array) -> Array:
    """Returns rows of a table; nan where there is no such row, not one that JAX would choose instead."""
    known = jnp.where(index < 0, table.shape[0], index)  # Negative numbers would count from the end.
    return jnp.take(table, known, axis=0, mode="fill", fill_value=jnp.nan)


class Embedding(Module):
    """A table with a row for each word; the same table, transposed, makes logits in tied models."""

    class Config(Module.Config):
        vocab_size: int = REQUIRED
        dim: int = REQUIRED
        init: FunctionConfig[Init] = config_for(normal, stddev=0.02)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._declare_table()

    def _declare_table(self) -> None:
        shape, init = (self.cfg.vocab_size, self.cfg.dim), self.cfg.init.build()
        self.param("table", shape, axes=("vocab", "embed"), init=init, in_dims=(), out_dims=())

    def forward(self, ids: Array) -> Array:
        """Looks up rows: `[B, T]` to `[B, T, dim]`; an id outside of the vocabulary gives nan, not another word."""
        axes = ("batch", "seq")
        return self.on_shards(self._found, ids, in_axes=(axes,), out_axes=(*axes, None), keep=("vocab",))

    def _found(self, ids: Array) -> Array:
        """Looks up rows; where devices have parts of the table, every row is found on one of them."""
        table, parts = self.table, self.group("vocab", self.cfg.vocab_size)
        if not parts:
            return _rows(table, ids)
        place = ids - jax.lax.axis_index(parts) * table.shape[0]
        here = (place >= 0) & (place < table.shape[0])
        found = jnp.where(here[..., None], jnp.take(table, jnp.where(here, place, 0), axis=0), 0)
        known = (ids >= 0) & (ids < self.cfg.vocab_size)
        total = jax.lax.psum(found.astype(jnp.float32), parts).astype(table.dtype)
        return jnp.where(known[..., None], total, jnp.nan)

    def logits(self, x: Array) -> Array:
        """Maps activations `[*B, dim]` to logits `[*B, vocab]`, by the same table."""
        return x @ self.table.T


class PositionEmbedding(Module, abc.ABC):
    """The interface of positions that are added to the embedding of tokens."""

    class Config(Module.Config):
        dim: int = REQUIRED

    @abc.abstractmethod
    def forward(self, positions: Array) -> Array:
        """Maps positions `[*B]` to `[*B, dim]`."""

    @abc.abstractmethod
    def max_length(self) -> int | None:
        """Returns how many positions there are; None: any number."""


class LearnedPosition(PositionEmbedding):
    """A learned row for each position up to `max_length`."""

    class Config(PositionEmbedding.Config):
        max_length: int = REQUIRED
        init: FunctionConfig[Init] = config_for(normal, stddev=0.01)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        shape = (cfg.max_length, cfg.dim)
        self.param("table", shape, axes=(None, "embed"), init=cfg.init.build(), in_dims=(), out_dims=())

    def forward(self, positions: Array) -> Array:
        length = positions.shape[-1]
        if length > self.cfg.max_length:
            raise ConfigError(
                f"{self!r}: a sequence of {length} tokens, but max_length is {self.cfg.max_length}.\n"
                "  Use a seq_len of at most that, or a larger max_length."
            )
        return _rows(self.table, positions)

    def max_length(self) -> int | None:
        return self.cfg.max_length


class SinusoidalPosition(PositionEmbedding):
    """Sines and cosines of the position, at frequencies that fall from one to `1 / theta`.

    Reference: Vaswani et al., Attention Is All You Need, 2017 (arXiv:1706.03762).
    """

    class Config(PositionEmbedding.Config):
        theta: float = 10_000.0
        interleaved: bool = True  # Sine and cosine in turn, as in the paper; or first all sines, then all cosines.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.dim % 2:
            raise ConfigError(f"{self!r}: dim is {cfg.dim}, expected an even number.")

    def forward(self, positions: Array) -> Array:
        frequencies = jnp.asarray(rotary_frequencies(self.cfg.dim, self.cfg.theta), jnp.float32)
        angles = positions[..., None].astype(jnp.float32) * frequencies
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1 if self.cfg.interleaved else -2)
        return waves.reshape(*positions.shape, self.cfg.dim).astype(self.compute_dtype or jnp.float32)

    def max_length(self) -> int | None:
        return None  # There is a wave at any position.
