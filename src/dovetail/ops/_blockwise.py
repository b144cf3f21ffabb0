# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks: memory grows with the length of the sequence, not with its square.

The mask's bounds say which blocks of keys a block of queries may see. One loop visits these pairs of blocks, and keeps
for each query the largest score so far, the sum of weights and the sum of weighted values. The backward pass visits the
same pairs and computes their scores again.

References: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018 (arXiv:1805.02867); Dao et al.,
FlashAttention, 2022 (arXiv:2205.14135).

Shape letters: B batch, T queries, S keys, H query heads, G key heads, R = H / G, K key dim, V value dim.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.config import ConfigError

from ._attention import MASKED, AttentionKernel, by_group, scores_of
from ._masks import Mask, Tokens
from ._query_blocks import attend
from ._score_bias import ScoreBias


class BlockwiseAttention(AttentionKernel):
    """One pair of blocks of queries and keys at a time, without the pairs that the mask rules out.

    It has no derivative in forward mode, and none of its gradient.
    """

    class Config(AttentionKernel.Config):
        block: int = 256  # Queries, and keys, in a block.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.block < 1:
            raise ConfigError(f"{self._path or 'BlockwiseAttention'}: block is {cfg.block}, expected at least 1.")

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
        aligned: bool,
        soft_cap: float | None = None,
        bias: ScoreBias | None = None,
        sinks: Array | None = None,
    ) -> Array:
        (batch, length, heads, _), (_, keys, groups, _) = q.shape, k.shape
        block = self.cfg.block
        if max(length, keys) <= block:  # One pair of blocks: no loop, and its weights may be kept.
            return attend(q, k, v, mask, q_tokens, k_tokens, scale, soft_cap, bias, sinks)
        rows = _even(length, block)
        columns = _even(keys, max(block, block * block // rows))  # Few queries, as in decoding, see many keys at once.
        plan = _Plan(mask, scale, soft_cap, rows, columns, keys, _pairs(mask, length, keys, rows, columns, aligned))
        if not plan.pairs:
            return jnp.zeros((batch, length, heads, v.shape[-1]), q.dtype)
        q = q.reshape(batch, length, groups, heads // groups, -1).transpose(0, 2, 3, 1, 4)
        inputs = _Inputs(
            q=_padded(q, rows, 3),
            k=_padded(k.swapaxes(1, 2), columns, 2),
            v=_padded(v.swapaxes(1, 2), columns, 2),
            bias=bias,
            sinks=None if sinks is None else by_group(sinks, groups),
            q_tokens=jax.tree.map(lambda x: _padded(x, rows, 1), q_tokens),
            k_tokens=jax.tree.map(lambda x: _padded(x, columns, 1), k_tokens),
        )
        out: Any = _attend(plan, inputs)
        return out[:, :, :, :length].transpose(0, 3, 1, 2, 4).reshape(batch, length, heads, -1)


@dataclass(frozen=True)
class _Plan:
    """What is known when the program is traced."""

    mask: Mask
    scale: float
    soft_cap: float | None
    rows: int  # Queries in a block.
    columns: int  # Keys in a block.
    keys: int  # All keys, without those that only fill the last block.
    pairs: tuple[tuple[int, int], ...]  # Blocks of queries and of keys to visit.

    def visit(self, step: Callable[[Any, Array, Array], Any], carry: Any) -> Any:
        """Returns the last `carry = step(carry, row, column)`, over all pairs of blocks."""
        rows, columns = jnp.array(self.pairs, jnp.int32).T
        return jax.lax.scan(lambda carry, pair: (step(carry, *pair), None), carry, (rows, columns))[0]

    def allowed(self, q_tokens: Tokens, k_tokens: Tokens, column: Array) -> Array:
        """Returns which queries of a block see which keys of another, `[B or 1, 1, 1, rows, columns]`."""
        allowed = self.mask.allowed(q_tokens, k_tokens)[:, None, None]
        if self.keys % self.columns == 0:
            return allowed
        return allowed & (column * self.columns + jnp.arange(self.columns) < self.keys)


class _Inputs(NamedTuple):
    """Whole blocks of queries and keys."""

    q: Array  # [B, G, R, T, K]
    k: Array  # [B, G, S, K]
    v: Array  # [B, G, S, V]
    bias: ScoreBias | None
    sinks: Array | None  # [1, G, R, 1, 1]
    q_tokens: Tokens
    k_tokens: Tokens

    def at(self, plan: _Plan, row: Array, column: Array) -> "_Inputs":
        """Returns one pair of blocks."""
        return self._replace(
            q=_cut(self.q, row, plan.rows, 3),
            k=_cut(self.k, column, plan.columns, 2),
            v=_cut(self.v, column, plan.columns, 2),
            q_tokens=jax.tree.map(lambda x: _cut(x, row, plan.rows, 1), self.q_tokens),
            k_tokens=jax.tree.map(lambda x: _cut(x, column, plan.columns, 1), self.k_tokens),
        )

    def scores(self, plan: _Plan) -> tuple[Array, Callable[[Array], tuple[Array, Any]]]:
        """Returns the scores of all queries and keys, and what takes their gradient to the products and the bias."""

        def scores(products: Array, bias: ScoreBias | None) -> Array:
            return scores_of(products, bias, self.q_tokens, self.k_tokens, plan.scale, plan.soft_cap)

        return jax.vjp(scores, _product("bgrtk,bgsk->bgrts", self.q, self.k), self.bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: _Plan, inputs: _Inputs) -> Array:
    """Returns `[B, G, R, T, V]`."""
    return _forward(plan, inputs)[0]


def _forward(plan: _Plan, inputs: _Inputs) -> tuple[Array, Any]:
    shape = inputs.q.shape[:4]
    # A sink is a key that everyone has seen before any other: the largest score so far, of weight 1.
    sinks = inputs.sinks
    start = (
        jnp.full((*shape, 1), MASKED) if sinks is None else jnp.broadcast_to(sinks, (*shape, 1)),
        jnp.full((*shape, 1), 0.0 if sinks is None else 1.0),
        jnp.zeros((*shape, inputs.v.shape[-1])),
    )

    def step(carry: tuple[Array, Array, Array], row: Array, column: Array) -> tuple[Array, ...]:
        old_top, total, values = (_cut(x, row, plan.rows, 3) for x in carry)
        here = inputs.at(plan, row, column)
        allowed = plan.allowed(here.q_tokens, here.k_tokens, column)
        scores = jnp.where(allowed, here.scores(plan)[0], MASKED)
        top = jnp.maximum(old_top, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.where(allowed, jnp.exp(scores - top), 0.0)
        shrunk = jnp.exp(old_top - top)
        total = total * shrunk + jnp.sum(weights, axis=-1, keepdims=True)
        values = values * shrunk + _product("bgrts,bgsk->bgrtk", weights.astype(here.v.dtype), here.v)
        new = (top, total, values)
        return tuple(_put(x, y, row, plan.rows, 3) for x, y in zip(carry, new, strict=True))

    top, total, values = plan.visit(step, start)
    total = jnp.where(total == 0, 1.0, total)
    out = (values / total).astype(inputs.q.dtype)
    return out, (inputs, out, top + jnp.log(total))


def _backward(plan: _Plan, saved: Any, gradient: Array) -> tuple[_Inputs]:
    inputs, out, log_total = saved
    # The gradient of a score is its weight times (that of the weight minus the mean over all keys); this is the mean.
    mean = jnp.sum(gradient.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True)
    start = jax.tree.map(lambda x: jnp.zeros(x.shape), (inputs.q, inputs.k, inputs.v, inputs.bias))

    def step(carry: Any, row: Array, column: Array) -> Any:
        here = inputs.at(plan, row, column)
        out_gradient, mean_here, log_here = (_cut(x, row, plan.rows, 3) for x in (gradient, mean, log_total))
        scores, pull = here.scores(plan)
        allowed = plan.allowed(here.q_tokens, here.k_tokens, column)
        weights = jnp.where(allowed, jnp.exp(scores - log_here), 0.0)
        dv = _product("bgrts,bgrtk->bgsk", weights.astype(here.v.dtype), out_gradient)
        dweights = _product("bgrtk,bgsk->bgrts", out_gradient, here.v)
        dproducts, dbias = pull(weights * (dweights - mean_here))
        dproducts = dproducts.astype(here.q.dtype)
        dq = _product("bgrts,bgsk->bgrtk", dproducts, here.k)
        dk = _product("bgrts,bgrtk->bgsk", dproducts, here.q)
        return (
            _add(carry[0], dq, row, plan.rows, 3),
            _add(carry[1], dk, column, plan.columns, 2),
            _add(carry[2], dv, column, plan.columns, 2),
            jax.tree.map(lambda total, new: total + new.astype(jnp.float32), carry[3], dbias),
        )

    found = plan.visit(step, start)
    dq, dk, dv, dbias = jax.tree.map(lambda x, y: x.astype(y.dtype), found, tuple(inputs[:4]))
    dsinks = None
    if inputs.sinks is not None:  # The value of a sink is zero.
        dsinks = -jnp.sum(jnp.exp(inputs.sinks - log_total) * mean, axis=(0, 3, 4), keepdims=True)
    none = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), (inputs.q_tokens, inputs.k_tokens))
    return (_Inputs(dq, dk, dv, dbias, dsinks, *none),)


_attend.defvjp(_forward, _backward)


def _product(spec: str, a: Array, b: Array) -> Array:
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


def _even(length: int, most: int) -> int:
    """Returns the size of as few, equal blocks as there can be of at most `most`; the last may lack a few."""
    return -(-length // -(-length // most))


def _pairs(mask: Mask, length: int, keys: int, rows: int, columns: int, aligned: bool) -> tuple[tuple[int, int], ...]:
    """Returns all blocks of queries with the blocks of keys that they may see."""
    pairs: list[tuple[int, int]] = []
    for row, start in enumerate(range(0, length, rows)):
        low, high = mask.keys_for(start, min(start + rows, length), keys) if aligned else (0, keys)
        if low < high:
            pairs += [(row, column) for column in range(low // columns, -(-high // columns))]
    return tuple(pairs)


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
