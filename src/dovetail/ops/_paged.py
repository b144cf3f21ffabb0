# SPDX-License-Identifier: Apache-2.0
"""Attention to keys and values in pages, some pages at a time, up to the last one that a query may see.

Shape letters: B batch, T queries, H query heads, G key heads, R = H / G, K key dim, V value dim, P pages, L tokens of a
page, N pages of a row, M pages of a block, S = M L.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError

from ._attention import MASKED, AttentionInputs, AttentionKernel, Parts, Scoring, by_group, from_pairs
from ._kernel_choice import Support
from ._masks import EMPTY, Mask, Tokens, window_of
from ._quantised import rescaled


class _Sums(NamedTuple):
    """Of the keys so far."""

    top: Array  # [B, G, R, T]: the largest score.
    total: Array  # [B, G, R, T]: sum of the exponentials.
    values: Array  # [B, G, R, T, V]: values, weighted by them.


class PagedAttention(AttentionKernel):
    """Takes pages as they lie, a block of them at a time, in plain JAX: for every platform.

    How long it takes follows from the tokens that are there, not from the width of the table. It has no gradient: a
    program that decodes needs none.
    """

    class Config(AttentionKernel.Config):
        block: int = 128  # Keys that are looked at together.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if cfg.block < 1:
            raise ConfigError(f"{self._path or 'PagedAttention'}: block is {cfg.block}, expected at least 1.")

    @property
    def reads_pages(self) -> bool:
        return True

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        return Support("keys and values are not in pages") if inputs.pages is None else Support()

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        q, k, v, pages = inputs.q, inputs.k, inputs.v, inputs.pages
        if pages is None:
            raise ConfigError(f"{self._path or 'PagedAttention'}: keys and values are not in pages. Use a PagedCache.")
        grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
        size = k.shape[1]
        width = min(pages.shape[1], max(1, self.cfg.block // size))
        more = -pages.shape[1] % width
        table, tokens = jnp.pad(pages, ((0, 0), (0, more))), _padded(inputs.k_tokens, more * size)

        def add(block: Array, sums: _Sums) -> _Sums:
            def part(x: Array, width: int) -> Array:
                return jax.lax.dynamic_slice_in_dim(x, block * width, width, axis=1)

            chosen = part(table, width)
            # Of what lies in memory: a part of that would be made for all pages, not just for those that are chosen.
            lying = (k, v) if inputs.pairs is None else (inputs.pairs,)
            rows = [each[chosen].reshape(q.shape[0], width * size, *each.shape[2:]) for each in lying]
            rows = rows if inputs.pairs is None else [x[..., : k.shape[-1]] for x in from_pairs(rows[0])]
            if inputs.scales is not None:
                scales = [each[chosen].reshape(*rows[0].shape[:2], -1) for each in inputs.scales]
                rows = [rescaled(row, scale, q.dtype) for row, scale in zip(rows, scales, strict=True)]
            here = jax.tree.map(lambda field: part(field, width * size), tokens)
            return _added(sums, grouped, rows[0], rows[1], here, inputs, scoring)

        first, last = _blocks(inputs.q_tokens, scoring.mask, width * size, table.shape[1] // width)
        shape = (q.shape[0], k.shape[2], grouped.shape[3], q.shape[1])
        sums = _Sums(
            jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape), jnp.zeros((*shape, v.shape[-1]), jnp.float32)
        )
        sums = jax.lax.fori_loop(first, last, add, sums)
        if inputs.sinks is not None:
            sums = _with_sinks(sums, by_group(inputs.sinks, k.shape[2])[..., 0])
        out = sums.values / jnp.where(sums.total == 0, 1.0, sums.total)[..., None]
        return jnp.moveaxis(out, 3, 1).reshape(*q.shape[:3], v.shape[-1]).astype(q.dtype)


def _with_sinks(sums: _Sums, sinks: Array) -> _Sums:
    """Returns the sums with one more key for each head, whose value is zero."""
    top = jnp.maximum(sums.top, sinks)
    scale = jnp.exp(sums.top - top)
    return _Sums(top, sums.total * scale + jnp.exp(sinks - top), sums.values * scale[..., None])


def _padded(tokens: Tokens, more: int) -> Tokens:
    """Returns the tokens of the keys with places behind them that hold nothing."""
    if not more:
        return tokens

    def pad(field: Array | None, value: int) -> Array | None:
        return None if field is None else jnp.pad(field, ((0, 0), (0, more)), constant_values=value)

    padded = pad(tokens.index, EMPTY)
    assert padded is not None
    return Tokens(padded, pad(tokens.segment, 0), pad(tokens.prefix, 0))


def _added(
    sums: _Sums, grouped: Array, k: Array, v: Array, here: Tokens, inputs: AttentionInputs, scoring: Scoring
) -> _Sums:
    """Returns the sums with a block of keys and values, `[B, S, G, K]`."""
    products = jnp.einsum("btgrk,bsgk->bgrts", grouped, k, preferred_element_type=jnp.float32)
    scores = scoring.scores(products, inputs.q_tokens, here, inputs.bias)
    allowed = scoring.mask.allowed(inputs.q_tokens, here)[:, None, None]
    scores = jnp.where(allowed, scores, MASKED)
    top = jnp.maximum(sums.top, jnp.max(scores, axis=-1))
    weights = jnp.where(allowed, jnp.exp(scores - top[..., None]), 0.0)
    scale = jnp.exp(sums.top - top)
    # Pages that nobody has written hold anything; what the mask rules out must not get into a sum, not even as nan.
    seen = jnp.any(allowed, axis=(1, 2, 3))[..., None, None]
    added = jnp.einsum(
        "bgrts,bsgk->bgrtk", weights.astype(v.dtype), jnp.where(seen, v, 0), preferred_element_type=jnp.float32
    )
    return _Sums(top, sums.total * scale + jnp.sum(weights, axis=-1), sums.values * scale[..., None] + added)


def _blocks(queries: Tokens, mask: Mask, size: int, count: int) -> tuple[Array, Array]:
    """Returns the first block with keys that a query may see, and the one after the last.

    No key is after the last query of a call, whatever the mask: a cache has read nothing else.
    """
    real = queries.index != EMPTY
    last = jnp.max(jnp.where(real, queries.index, -1)) // size + 1
    window = window_of(mask)
    if window is None:
        return jnp.zeros((), jnp.int32), jnp.minimum(last, count)
    least = jnp.min(jnp.where(real, queries.index, EMPTY))
    first = jnp.where(least == EMPTY, 0, jnp.maximum(least - window + 1, 0) // size)
    return jnp.minimum(first, count), jnp.minimum(last, count)
