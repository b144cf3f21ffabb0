# SPDX-License-Identifier: Apache-2.0
"""Attention kernels: one interface, and its definition.

Shape letters: B batch, T queries, S keys, H query heads, G key heads, R = H / G, K key dim, V value dim.
"""

import abc
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import Component

from ._kernel_choice import Support
from ._masks import Mask, Tokens, window_of
from ._quantised import rescaled
from ._score_bias import ScoreBias
from ._work import Work, is_counted, stated

# Stands for scores that the mask rules out: far below any score, far from overflow in float32.
MASKED = -1e30


@dataclass(frozen=True)
class Part:
    """Some pieces of a sequence, of one size, one after the other."""

    starts: tuple[int, ...]  # Where the pieces begin in the sequence.
    size: int

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.starts) * self.size

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields where in the sequence the tokens `start` to `stop` of the part are."""
        for i, at in enumerate(self.starts):
            low, high = max(start - i * self.size, 0), min(stop - i * self.size, self.size)
            if low < high:
                yield at + low, at + high

    def places(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields where in the part the tokens `start` to `stop` of the sequence are."""
        for i, at in enumerate(self.starts):
            low, high = max(start - at, 0), min(stop - at, self.size)
            if low < high:
                yield i * self.size + low, i * self.size + high


@dataclass(frozen=True)
class Parts:
    """Queries that are one of several parts of the sequence of keys, such as those that each device has.

    The mask's static bounds hold for each part, so that a kernel can skip what they rule out on every device, though
    all devices run one program.
    """

    parts: tuple[Part, ...]  # All of one size.
    choice: Array  # Which of them: an integer, known when the program runs.

    @property
    def size(self) -> int:
        """Of their pieces."""
        return self.parts[0].size


class AttentionInputs(NamedTuple):
    """The arrays that attention is computed from; see `AttentionKernel`."""

    q: Array
    k: Array
    v: Array
    q_tokens: Tokens
    k_tokens: Tokens
    bias: ScoreBias | None
    sinks: Array | None
    pages: Array | None = None
    pairs: Array | None = None
    scales: tuple[Array, Array] | None = None


@dataclass(frozen=True)
class Scoring:
    """How queries and keys become scores, as far as the program knows before it runs."""

    mask: Mask
    scale: float
    soft_cap: float | None

    def scores(self, products: Array, q_tokens: Tokens, k_tokens: Tokens, bias: ScoreBias | None) -> Array:
        """Returns scores `[B, G, R, T, S]` from the products of queries and keys; the mask comes later."""
        scores = products * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
        if bias is None:
            return scores
        added = bias(q_tokens.index[:, :, None] - k_tokens.index[:, None, :])
        return scores + added.reshape(added.shape[0], *scores.shape[1:])


class AttentionKernel(Component, abc.ABC):
    """The interface between attention layers and the ways to compute attention."""

    class Config(Component.Config):
        keeps_defaults: ClassVar[bool] = True

    @property
    def reads_pages(self) -> bool:
        """Whether `attend` takes keys and values in pages."""
        return False

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        mask: Mask,
        q_tokens: Tokens,
        k_tokens: Tokens,
        scale: float,
        aligned: bool | Parts,
        soft_cap: float | None = None,
        bias: ScoreBias | None = None,
        sinks: Array | None = None,
        pages: Array | None = None,
        pairs: Array | None = None,
        scales: tuple[Array, Array] | None = None,
    ) -> Array:
        """Returns `[B, T, H, V]`: for each query, the mean of the values weighted by softmax of the scores.

        The scores are `q @ k * scale`, then soft-capped, then biased. A query that may see no key gets zeros. Scores
        and sums are in float32, the result has the dtype of `q`.

        Args:
            q: `[B, T, H, K]`, with H a multiple of G: the heads of a group follow each other and share a key head.
            k, v: `[B, S, G, K]` and `[B, S, G, V]`.
            aligned: queries and keys are the same tokens in order, so that the mask's static bounds hold; or which
                parts of the keys' tokens the queries are.
            soft_cap: scores become `soft_cap * tanh(score / soft_cap)`.
            bias: added to scores, by the distance between the places (`Tokens.index`) of query and key.
            sinks: `[H]`, the score of one more key for each head, which everyone sees and whose value is zero.
            pages: `[B, N]`, the pages of each row, in order, where keys and values are pages, `[P, L, G, K]`: the same
                as rows of S = N L keys. A kernel that does not read pages (`reads_pages`) is given such rows.
            pairs: `[P, L, 2G, K or more]`, each key head followed by its value head, where pages lie in memory so: `k`
                and `v` are then parts of it, without the zeros that may fill up K, and a kernel that can take both
                together moves nothing.
            scales: of `k` and `v`, without their last dimension, where these are integers, as `quantise_rows` makes
                them. A kernel is given them with pages alone, which it then should not make floating-point as a whole.
        """
        if pages is not None and not self.reads_pages:
            k, v, *scaled = (rows_of_pages(each, pages) for each in (k, v, *(scales or ())))
            pages, pairs, scales = None, None, (scaled[0], scaled[1]) if scaled else None
        if scales is not None and pages is None:
            k, v, scales = rescaled(k, scales[0], q.dtype), rescaled(v, scales[1], q.dtype), None
        if is_counted():
            keys = k.shape[1] if pages is None else k.shape[1] * pages.shape[1]
            return stated(attention_work(q, keys, v, mask, aligned), _result(q, v), q, k, v)
        inputs = AttentionInputs(q, k, v, q_tokens, k_tokens, bias, sinks, pages, pairs, scales)
        return self.attend(inputs, Scoring(mask, scale, soft_cap), aligned)

    @abc.abstractmethod
    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        """Computes what a call returns; its arguments are what kernels pass on together."""

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        """Says whether `attend` computes this, where the program will run; by default, it computes everything."""
        return Support()


class ReferenceAttention(AttentionKernel):
    """All scores at once: the definition, for short sequences and tests."""

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        q, k, v, q_tokens, k_tokens, bias, sinks, *_ = inputs
        grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
        products = jnp.einsum("btgrk,bsgk->bgrts", grouped, k, preferred_element_type=jnp.float32)
        scores = scoring.scores(products, q_tokens, k_tokens, bias)
        allowed = scoring.mask.allowed(q_tokens, k_tokens)[:, None, None]
        scores = jnp.where(allowed, scores, MASKED)
        top = jnp.max(scores, axis=-1, keepdims=True)
        if sinks is not None:
            sinks = by_group(sinks, k.shape[2])
            top = jnp.maximum(top, sinks)
        weights = jnp.where(allowed, jnp.exp(scores - top), 0.0)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        if sinks is not None:
            total = total + jnp.exp(sinks - top)
        weights = weights / jnp.where(total == 0, 1.0, total)
        out = jnp.einsum("bgrts,bsgk->btgrk", weights.astype(v.dtype), v)
        return out.reshape(*q.shape[:3], v.shape[-1]).astype(q.dtype)


def rows_of_pages(paged: Array, pages: Array) -> Array:
    """Returns pages `[P, L, ...]` as the rows that a table `[B, N]` makes of them, `[B, N L, ...]`."""
    rows = paged[pages]
    return rows.reshape(rows.shape[0], -1, *paged.shape[2:])


def in_pairs(k: Array, v: Array) -> Array:
    """Returns `[..., 2G, K]`, each key head `[..., G, K]` followed by its value head."""
    return jnp.stack([k, v], axis=-2).reshape(*k.shape[:-2], 2 * k.shape[-2], k.shape[-1])


def from_pairs(pairs: Array) -> tuple[Array, Array]:
    """Returns the keys and values of `in_pairs`."""
    return pairs[..., 0::2, :], pairs[..., 1::2, :]


def by_group(per_head: Array, num_groups: int) -> Array:
    """Returns what each head has, `[H]`, as float32 of the shape of scores, `[1, G, R, 1, 1]`."""
    return per_head.astype(jnp.float32).reshape(1, num_groups, -1, 1, 1)


def attention_work(q: Array, keys: int, v: Array, mask: Mask, aligned: bool | Parts) -> Work:
    """Returns what attention takes: two products for each pair of a query and a key. Documents are not known here."""
    rows, queries, heads, dim = q.shape
    pairs = queries * keys
    seen = _pairs(mask, queries) if aligned is True else queries * min(keys, window_of(mask) or keys)
    each = 2 * rows * heads * (dim + v.shape[-1])
    return Work(each * seen, each * pairs)


@functools.cache
def _pairs(mask: Mask, length: int) -> int:
    """Returns how many pairs of a query and a key the mask lets through, as far as it knows before the program runs."""
    bounds = (mask.keys_for(query, query + 1, length) for query in range(length))
    return sum(max(0, stop - start) for start, stop in bounds)


def _result(q: Array, v: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*q.shape[:3], v.shape[-1]), q.dtype)
