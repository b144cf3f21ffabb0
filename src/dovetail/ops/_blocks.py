# SPDX-License-Identifier: Apache-2.0
"""Attention over pairs of blocks, of queries and of keys: what is added up, forward and backward.

The mask's bounds say which blocks of keys a block of queries may see. A loop visits these pairs of blocks, and keeps
for each query the largest score so far, the sum of weights and the sum of weighted values. The backward pass visits the
same pairs and computes their scores again. Keys may come in several parts, one after the other, as they do round a
ring of devices: the sums go on from one part to the next.

References: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018 (arXiv:1805.02867); Dao et al.,
FlashAttention, 2022 (arXiv:2205.14135).

Shape letters: B batch, T queries, S keys, H query heads, G key heads, R = H / G, K key dim, V value dim.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._attention import MASKED, AttentionInputs, Part, Scoring, by_group
from ._masks import Mask, Tokens
from ._score_bias import ScoreBias

Bounds = tuple[tuple[int, int], ...]  # For each block of queries: the first block of keys, and the one after the last.
Sums = tuple[Array, Array, Array]  # For each query: its largest score, the sum of weights, that of weighted values.


@dataclass(frozen=True)
class BlockPlan:
    """What is known when the program is traced."""

    scoring: Scoring
    rows: int  # Queries in a block.
    columns: int  # Keys in a block.
    keys: int  # All keys, without those that only fill the last block.
    bounds: tuple[Bounds, ...]  # More than one: which of them hold is known only when the program runs.

    @property
    def num_pairs(self) -> int:
        """How many pairs of blocks are visited: as many as the widest bounds take."""
        return max(sum(stop - start for start, stop in bounds) for bounds in self.bounds)

    def add_keys(self, inputs: "BlockInputs", sums: Sums) -> Sums:
        """Returns the sums with these keys in them."""

        def step(carry: Sums, row: Array, column: Array) -> Any:
            old_top, total, values = (_cut(x, row, self.rows, 3) for x in carry)
            here = inputs.at(self, row, column)
            allowed = self._allowed(here.q_tokens, here.k_tokens, column)
            scores = jnp.where(allowed, here.scores(self)[0], MASKED)
            top = jnp.maximum(old_top, jnp.max(scores, axis=-1, keepdims=True))
            weights = jnp.where(allowed, jnp.exp(scores - top), 0.0)
            shrunk = jnp.exp(old_top - top)
            total = total * shrunk + jnp.sum(weights, axis=-1, keepdims=True)
            values = values * shrunk + _product("bgrts,bgsk->bgrtk", weights.astype(here.v.dtype), here.v)
            new = (top, total, values)
            return tuple(_put(x, y, row, self.rows, 3) for x, y in zip(carry, new, strict=True))

        return self._visit(step, sums, inputs.choice)

    def add_gradients(self, inputs: "BlockInputs", given: "OutGradient", gradients: Any) -> Any:
        """Returns the gradients of `q`, `k`, `v` and `bias` with what comes of these keys in them."""

        def step(carry: Any, row: Array, column: Array) -> Any:
            here = inputs.at(self, row, column)
            out_gradient, log_total, mean = (_cut(x, row, self.rows, 3) for x in given)
            scores, pull = here.scores(self)
            allowed = self._allowed(here.q_tokens, here.k_tokens, column)
            weights = jnp.where(allowed, jnp.exp(scores - log_total), 0.0)
            dv = _product("bgrts,bgrtk->bgsk", weights.astype(here.v.dtype), out_gradient)
            dweights = _product("bgrtk,bgsk->bgrts", out_gradient, here.v)
            dproducts, dbias = pull(weights * (dweights - mean))
            dproducts = dproducts.astype(here.q.dtype)
            dq = _product("bgrts,bgsk->bgrtk", dproducts, here.k)
            dk = _product("bgrts,bgrtk->bgsk", dproducts, here.q)
            return (
                _add(carry[0], dq, row, self.rows, 3),
                _add(carry[1], dk, column, self.columns, 2),
                _add(carry[2], dv, column, self.columns, 2),
                jax.tree.map(lambda total, new: total + new.astype(jnp.float32), carry[3], dbias),
            )

        return self._visit(step, gradients, inputs.choice)

    def _visit(self, step: Callable[[Any, Array, Array], Any], carry: Any, choice: Array | None) -> Any:
        """Returns the last `carry = step(carry, row, column)`, over all pairs of blocks within the bounds."""
        rows, columns = self._pairs(choice)
        return jax.lax.scan(lambda carry, pair: (step(carry, *pair), None), carry, (rows, columns))[0]

    def _allowed(self, q_tokens: Tokens, k_tokens: Tokens, column: Array) -> Array:
        """Returns which queries of a block see which keys of another, `[B or 1, 1, 1, rows, columns]`."""
        allowed = self.scoring.mask.allowed(q_tokens, k_tokens)[:, None, None]
        if self.keys % self.columns == 0 and len(self.bounds) == 1:
            return allowed
        return allowed & (column * self.columns + jnp.arange(self.columns) < self.keys)

    def _pairs(self, choice: Array | None) -> tuple[Array, Array]:
        """Returns rows and columns; where these bounds need fewer than others, a column that has no keys."""
        if choice is None:
            bounds = enumerate(self.bounds[0])
            rows, columns = np.array([(row, at) for row, (start, stop) in bounds for at in range(start, stop)]).T
            return jnp.asarray(rows, jnp.int32), jnp.asarray(columns, jnp.int32)
        start, stop = jnp.asarray(self.bounds, jnp.int32)[choice].T
        ends, at = jnp.cumsum(stop - start), jnp.arange(self.num_pairs, dtype=jnp.int32)
        rows = jnp.repeat(jnp.arange(len(start), dtype=jnp.int32), stop - start, total_repeat_length=len(at))
        return rows, jnp.where(at < ends[-1], at + (stop - ends)[rows], -(-self.keys // self.columns))


def bounds_of(mask: Mask, q: Part, k: Part, length: int, rows: int, columns: int) -> Bounds:
    """Returns which blocks of keys each block of queries may see, if both are parts of one sequence."""

    def one(start: int) -> tuple[int, int]:
        seen = [mask.keys_for(*span, length) for span in q.spans(start, start + rows)]
        places = [place for span in seen for place in k.places(*span)]
        low, high = min(places, default=(0, 0))[0], max((high for _, high in places), default=0)
        return low // columns, -(-high // columns)

    return tuple(map(one, range(0, q.length, rows)))


class BlockInputs(NamedTuple):
    """Whole blocks of queries and keys."""

    q: Array  # [B, G, R, T, K]
    k: Array  # [B, G, S, K]
    v: Array  # [B, G, S, V]
    bias: ScoreBias | None
    sinks: Array | None  # [1, G, R, 1, 1]
    q_tokens: Tokens
    k_tokens: Tokens
    choice: Array | None = None  # Among the bounds of the plan, if there is more than one.

    @classmethod
    def of(cls, inputs: AttentionInputs, rows: int, columns: int) -> "BlockInputs":
        """Takes the inputs of a kernel to whole blocks."""
        q, k, v, q_tokens, k_tokens, bias, sinks, *_ = inputs
        groups = k.shape[2]
        q = q.reshape(*q.shape[:2], groups, -1, q.shape[-1]).transpose(0, 2, 3, 1, 4)
        return cls(
            q=_padded(q, rows, 3),
            k=_padded(k.swapaxes(1, 2), columns, 2),
            v=_padded(v.swapaxes(1, 2), columns, 2),
            bias=bias,
            sinks=None if sinks is None else by_group(sinks, groups),
            q_tokens=jax.tree.map(lambda x: _padded(x, rows, 1), q_tokens),
            k_tokens=jax.tree.map(lambda x: _padded(x, columns, 1), k_tokens),
        )

    def at(self, plan: BlockPlan, row: Array, column: Array) -> "BlockInputs":
        """Returns one pair of blocks."""
        return self._replace(
            q=_cut(self.q, row, plan.rows, 3),
            k=_cut(self.k, column, plan.columns, 2),
            v=_cut(self.v, column, plan.columns, 2),
            q_tokens=jax.tree.map(lambda x: _cut(x, row, plan.rows, 1), self.q_tokens),
            k_tokens=jax.tree.map(lambda x: _cut(x, column, plan.columns, 1), self.k_tokens),
        )

    def scores(self, plan: BlockPlan) -> tuple[Array, Callable[[Array], tuple[Array, Any]]]:
        """Returns the scores of all queries and keys, and what takes their gradient to the products and the bias."""

        def scores(products: Array, bias: ScoreBias | None) -> Array:
            return plan.scoring.scores(products, self.q_tokens, self.k_tokens, bias)

        return jax.vjp(scores, _product("bgrtk,bgsk->bgrts", self.q, self.k), self.bias)

    def no_sums(self) -> Sums:
        """Returns the sums over no key, but the sink: a key that everyone has seen before any other, of weight 1."""
        shape, sinks = self.q.shape[:4], self.sinks
        return (
            jnp.full((*shape, 1), MASKED) if sinks is None else jnp.broadcast_to(sinks, (*shape, 1)),
            jnp.full((*shape, 1), 0.0 if sinks is None else 1.0),
            jnp.zeros((*shape, self.v.shape[-1])),
        )

    def no_gradients(self) -> Any:
        """Returns zeros in float32 for the gradients of `q`, `k`, `v` and `bias`."""
        return jax.tree.map(lambda x: jnp.zeros(x.shape), (self.q, self.k, self.v, self.bias))

    def gradients(self, given: "OutGradient", found: Any) -> tuple["BlockInputs"]:
        """Returns what a custom derivative returns: the gradients in the dtypes of the inputs."""
        dq, dk, dv, dbias = jax.tree.map(lambda x, y: x.astype(y.dtype), found, tuple(self[:4]))
        none = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), self[5:])
        return (BlockInputs(dq, dk, dv, dbias, given.of_sinks(self.sinks), *none),)


def from_blocks(out: Array, length: int) -> Array:
    """Takes `[B, G, R, T, V]` to `[B, length, H, V]`."""
    out = out[:, :, :, :length].transpose(0, 3, 1, 2, 4)
    return out.reshape(*out.shape[:2], -1, out.shape[-1])


class Attended(NamedTuple):
    """The result, and what its gradient needs."""

    out: Array  # [B, G, R, T, V]
    log_total: Array  # [B, G, R, T, 1]: the logarithm of the sum of weights.

    @classmethod
    def of(cls, sums: Sums, dtype: Any) -> "Attended":
        """Divides the sums."""
        top, total, values = sums
        total = jnp.where(total == 0, 1.0, total)
        return cls((values / total).astype(dtype), top + jnp.log(total))

    def given(self, gradient: Array) -> "OutGradient":
        """Takes the gradient of the result."""
        mean = jnp.sum(gradient.astype(jnp.float32) * self.out.astype(jnp.float32), axis=-1, keepdims=True)
        return OutGradient(gradient, self.log_total, mean)


class OutGradient(NamedTuple):
    """The gradient of the result, and what all keys share of what comes of it."""

    out: Array  # [B, G, R, T, V]
    log_total: Array
    # The gradient of a score is its weight times (that of the weight minus the mean over all keys); this is the mean.
    mean: Array  # [B, G, R, T, 1]

    def of_sinks(self, sinks: Array | None) -> Array | None:
        """Returns the gradient of the sinks, whose value is zero."""
        if sinks is None:
            return None
        return -jnp.sum(jnp.exp(sinks - self.log_total) * self.mean, axis=(0, 3, 4), keepdims=True)


def even_blocks(length: int, most: int) -> int:
    """Returns the size of as few, equal blocks as there can be of at most `most`; the last may lack a few."""
    return -(-length // -(-length // most))


def _product(spec: str, a: Array, b: Array) -> Array:
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


def _padded(x: Array, block: int, axis: int) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % block)
    return jnp.pad(x, widths) if widths[axis][1] else x


def _cut(x: Array, index: Array, size: int, axis: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, index * size, size, axis)


def _put(x: Array, new: Array, index: Array, size: int, axis: int) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(x, new, index * size, axis)


def _add(x: Array, new: Array, index: Array, size: int, axis: int) -> Array:
    return _put(x, _cut(x, index, size, axis) + new, index, size, axis)
