# SPDX-License-Identifier: Apache-2.0
"""The state-space recurrence of Mamba 2, in chunks.

Reference: Dao and Gu, Transformers are SSMs, 2024 (arXiv:2405.21060), section 6. What they call X, A, B, C and delta is
here value, rate, key, query and step.

Shape letters: B batch, T time, Q positions of a chunk, G groups, R heads of a group, H = G R, P head dim, N state dim.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array

from ._chunks import decays, scan_chunks
from ._work import Work, is_counted, stated


def state_space(
    value: Array, step: Array, rate: Array, key: Array, query: Array, *, document: Array, state: Array, chunk: int
) -> tuple[Array, Array]:
    """Returns `y[t] = query[t] . s[t]`, where `s[t] = exp(step[t] rate) s[t - 1] + step[t] value[t] key[t]`.

    Where the document changes, `s` starts at 0. A step of 0 leaves the state as it is. Products are of the dtype of
    `value`; sums, decays, the result and the state are float32.

    Args:
        value: `[B, T, H, P]`.
        step: `[B, T, H]`, at least 0, float32.
        rate: `[H]`, at most 0, float32.
        key, query: `[B, T, G, N]`, shared by the heads of a group.
        document: `[B, T]`, numbers that do not fall; 0 goes on from `state`.
        state: `[B, H, P, N]`.

    Returns:
        `[B, T, H, P]`, and the state after the last position.
    """
    if is_counted():  # A token is written into the state and read from it: an outer product, and a product.
        flops = 4 * math.prod(value.shape) * key.shape[-1]
        results = jax.ShapeDtypeStruct(value.shape, "float32"), jax.ShapeDtypeStruct(state.shape, "float32")
        return stated(Work(flops, flops), results, value, step, rate, key, query)
    carry = state, jnp.zeros(value.shape[:1], document.dtype)
    body = functools.partial(_chunk, rate)
    (state, _), out = scan_chunks(body, carry, (value, step, key, query, document), chunk)
    return out, state


def _chunk(rate: Array, carry: tuple[Array, Array], part: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
    (state, before), (value, step, key, query, document) = carry, part
    (batch, length, heads, _), groups, dtype = value.shape, key.shape[2], value.dtype
    decay = decays(step * rate, document, before)

    def grouped(x: Array, dim: int) -> Array:
        """Splits the heads at `dim` into groups."""
        return x.reshape(*x.shape[:dim], groups, heads // groups, *x.shape[dim + 1 :])

    def each_position(x: Array) -> Array:
        """From `[B, H, Q]` to `[B, Q, G, R, 1]`."""
        return grouped(jnp.moveaxis(x, 1, 2), 2)[..., None]

    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    value32 = grouped(value.astype(jnp.float32) * step[..., None], 2)
    scores = product("bign,bjgn->bgij", query, key)[:, :, None] * grouped(decay.between, 1)
    inside = product("bgrij,bjgrp->bigrp", scores.astype(dtype), value32.astype(dtype))
    old = grouped(state, 1)
    carried = product("bign,bgrpn->bigrp", query, old.astype(dtype)) * each_position(decay.since)
    added = product("bjgn,bjgrp->bgrpn", key, (value32 * each_position(decay.until)).astype(dtype))
    new = (old * grouped(decay.across, 1)[..., None, None] + added).reshape(state.shape)
    return (new, decay.document), (inside + carried).reshape(batch, length, heads, -1)
