# SPDX-License-Identifier: Apache-2.0
"""Attention masks as values: which query may see which key, without a [T, T] array.

A mask is a small static value (`Causal() & SlidingWindow(128)`). What it is applied to, the place of each token and
the document it belongs to, comes as `Tokens`, which slice like the queries and keys they describe.

Shape letters: B batch, T queries, S keys.
"""

import abc
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError

# The index of a place in a cache that has not been written, and of a token that is only padding.
EMPTY = jnp.iinfo(jnp.int32).max


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tokens:
    """What masks know of a sequence of tokens. `[1, T]` stands for the same in every row of the batch."""

    index: Array  # [B or 1, T]: place in the row, or in the cache when decoding.
    segment: Array | None = None  # [B, T]: document, 0 for padding; None: one document.
    prefix: Array | None = None  # [B, T]: whether the token belongs to a prefix that all may see; None: no prefix.

    def slice(self, start: int, stop: int) -> "Tokens":
        """Returns the tokens from `start` to `stop`."""
        return jax.tree.map(lambda field: field[:, start:stop], self)


class Mask(abc.ABC):
    """Says which query sees which key. Combine with `&` and `|`."""

    @abc.abstractmethod
    def allowed(self, q: Tokens, k: Tokens) -> Array:
        """Returns a boolean array `[B or 1, T, S]`."""

    def keys_for(self, start: int, stop: int, length: int) -> tuple[int, int]:
        """Returns bounds of the keys that queries `start` to `stop` may see, if queries and keys are the same tokens.

        Kernels skip what lies outside.
        """
        return 0, length

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, other)


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key."""

    def allowed(self, q: Tokens, k: Tokens) -> Array:
        return jnp.ones((1, q.index.shape[1], k.index.shape[1]), bool)


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees itself and what came before."""

    def allowed(self, q: Tokens, k: Tokens) -> Array:
        return q.index[:, :, None] >= k.index[:, None, :]

    def keys_for(self, start: int, stop: int, length: int) -> tuple[int, int]:
        return 0, stop


@dataclass(frozen=True)
class SlidingWindow(Mask):
    """A query sees keys less than `size` places before it, and what comes after; use with `Causal`."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"SlidingWindow: size is {self.size}, expected at least 1.")

    def allowed(self, q: Tokens, k: Tokens) -> Array:
        return q.index[:, :, None] - k.index[:, None, :] < self.size

    def keys_for(self, start: int, stop: int, length: int) -> tuple[int, int]:
        return max(0, start - self.size + 1), length


@dataclass(frozen=True)
class SameSegment(Mask):
    """A query sees keys of its own document, where rows are packed; padding sees only padding."""

    def allowed(self, q: Tokens, k: Tokens) -> Array:
        if q.segment is None or k.segment is None:
            return Full().allowed(q, k)
        return q.segment[:, :, None] == k.segment[:, None, :]


@dataclass(frozen=True)
class Prefix(Mask):
    """Every query sees the keys of the prefix; use as `Causal() | Prefix()`."""

    def allowed(self, q: Tokens, k: Tokens) -> Array:
        shape = (1, q.index.shape[1], k.index.shape[1])
        if k.prefix is None:
            return jnp.zeros(shape, bool)
        return jnp.broadcast_to(k.prefix[:, None, :], (k.prefix.shape[0], *shape[1:]))


@dataclass(frozen=True)
class Written(Mask):
    """A query sees only those places of a cache that have been written."""

    def allowed(self, q: Tokens, k: Tokens) -> Array:
        return jnp.broadcast_to((k.index != EMPTY)[:, None, :], (k.index.shape[0], q.index.shape[1], k.index.shape[1]))


@dataclass(frozen=True)
class And(Mask):
    """What both masks allow."""

    a: Mask
    b: Mask

    def allowed(self, q: Tokens, k: Tokens) -> Array:
        return self.a.allowed(q, k) & self.b.allowed(q, k)

    def keys_for(self, start: int, stop: int, length: int) -> tuple[int, int]:
        (a, b), (c, d) = self.a.keys_for(start, stop, length), self.b.keys_for(start, stop, length)
        return max(a, c), min(b, d)


def window_of(mask: Mask) -> int | None:
    """Returns how far back a mask lets a query look, as far as it is known; None: any distance."""
    match mask:
        case SlidingWindow(size):
            return size
        case And(a, b):
            found = [window for window in (window_of(a), window_of(b)) if window is not None]
            return min(found) if found else None
        case _:
            return None


@dataclass(frozen=True)
class Or(Mask):
    """What either mask allows."""

    a: Mask
    b: Mask

    def allowed(self, q: Tokens, k: Tokens) -> Array:
        return self.a.allowed(q, k) | self.b.allowed(q, k)

    def keys_for(self, start: int, stop: int, length: int) -> tuple[int, int]:
        (a, b), (c, d) = self.a.keys_for(start, stop, length), self.b.keys_for(start, stop, length)
        return min(a, c), max(b, d)
