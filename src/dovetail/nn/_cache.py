# SPDX-License-Identifier: Apache-2.0
"""Caches: what attention keeps of the tokens of earlier calls.

Shape letters: B batch, T time, S capacity.
"""

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.module import Module, ModuleError
from dovetail.ops import EMPTY, Tokens


class Kept(NamedTuple):
    """All that a cache holds after a call."""

    values: dict[str, Array]  # `[B, S, ...]`.
    tokens: Tokens  # Index EMPTY where nothing has been written.
    lost: Array  # [B]: whether a token found no room.

    def mark(self, x: Array) -> Array:
        """Makes rows of `x` nan that have lost a token, as nothing else can say so in a compiled program."""
        return jnp.where(self.lost.reshape(-1, *[1] * (x.ndim - 1)), jnp.nan, x).astype(x.dtype)


class Cache(Module, abc.ABC):
    """The interface: keeps arrays by token; used only in calls that keep state."""

    @abc.abstractmethod
    def forward(self, values: dict[str, Array], tokens: Tokens) -> Kept:
        """Adds arrays `[B, T, ...]` of new tokens, and returns those of all tokens so far."""


class DenseCache(Cache):
    """An array with room for `capacity` tokens in each row, each at the place that is its index.

    Heads come before tokens, `[B, G, S, K]`, as products with queries want them: time-major, each call would transpose
    all that is kept.
    """

    def __init__(self, cfg: Cache.Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.state_var("entries")

    def forward(self, values: dict[str, Array], tokens: Tokens) -> Kept:
        shape = next(iter(values.values())).shape[:2]
        index = jnp.broadcast_to(tokens.index, shape)
        segment = jnp.ones(shape, jnp.int32) if tokens.segment is None else jnp.broadcast_to(tokens.segment, shape)
        prefix = jnp.zeros(shape, bool) if tokens.prefix is None else jnp.broadcast_to(tokens.prefix, shape)
        new = (values, Tokens(index, segment, prefix))
        old = self.entries if self.has_state("entries") else self._empty(new, shape[1])
        entries = jax.tree.map(lambda old, new: _write(old, new, index), old, new)
        self.update("entries", entries)
        kept, known = jax.tree.map(_swapped, entries)
        lost = jnp.any((index >= known.index.shape[1]) & (index != EMPTY), axis=1)
        return Kept(kept, known if tokens.segment is not None else Tokens(known.index, None, known.prefix), lost)

    def _empty(self, new: tuple[dict[str, Array], Tokens], length: int) -> tuple[dict[str, Array], Tokens]:
        if length > self.capacity:
            raise ModuleError(f"{self!r}: {length} tokens do not fit into a capacity of {self.capacity}.")
        room = jax.tree.map(lambda x: _swapped(jnp.zeros((x.shape[0], self.capacity, *x.shape[2:]), x.dtype)), new)
        return room[0], Tokens(jnp.full_like(room[1].index, EMPTY), room[1].segment, room[1].prefix)


def _swapped(x: Array) -> Array:
    """Swaps tokens and heads, where there are heads: `[B, T, G, K]` and `[B, G, T, K]`."""
    return x if x.ndim < 4 else jnp.swapaxes(x, 1, 2)


def _write(old: Array, new: Array, index: Array) -> Array:
    """Puts `[B, T, ...]` at places `[B, T]` of what is kept."""
    if new.ndim < 4:
        return jax.vmap(lambda old, new, at: old.at[at].set(new, mode="drop"))(old, new, index)
    return jax.vmap(lambda old, new, at: old.at[:, at].set(new, mode="drop"))(old, _swapped(new), index)
