# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule, in chunks: a memory of keys and values, in which what is written replaces what was there.

Reference: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024 (arXiv:2412.06464), section 3.

Shape letters: B batch, T time, Q positions of a chunk, H heads, K key dim, V value dim.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from ._chunks import decays, scan_chunks
from ._work import Work, is_counted, stated


def gated_delta_rule(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array,
    strength: Array,
    *,
    document: Array,
    state: Array,
    chunk: int,
) -> tuple[Array, Array]:
    """Returns `query[t] @ s[t]`; `s[t]` is `exp(log_decay[t]) s[t - 1]`, into which `value[t]` is written at `key[t]`.

    To write is to add the outer product of `key` and `strength (value - key @ s)`, s being the decayed state. Where the
    document changes, `s` starts at 0. All in float32. With `strength` and `log_decay` 0 the state stays as it is.

    Args:
        query, key: `[B, T, H, K]`.
        value: `[B, T, H, V]`.
        log_decay, strength: `[B, T, H]`, at most 0, and between 0 and 1 (or 2).
        document: `[B, T]`, numbers that do not fall; 0 goes on from `state`.
        state: `[B, H, K, V]`.

    Returns:
        `[B, T, H, V]`, and the state after the last position.
    """
    if is_counted():  # The state is read twice, by the key and by the query, and written once.
        flops = 6 * math.prod(key.shape) * value.shape[-1]
        results = jax.ShapeDtypeStruct(value.shape, "float32"), jax.ShapeDtypeStruct(state.shape, "float32")
        return stated(Work(flops, flops), results, query, key, value, log_decay, strength)
    carry = state, jnp.zeros(value.shape[:1], document.dtype)
    inputs = [x.astype(jnp.float32) for x in (query, key, value, log_decay, strength)]
    (state, _), out = scan_chunks(_chunk, carry, (*inputs, document), chunk)
    return out, state


def _chunk(carry: tuple[Array, Array], part: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
    (state, before), (query, key, value, log_decay, strength, document) = carry, part
    query, key, value, strength = (jnp.moveaxis(x, 1, 2) for x in (query, key, value, strength))
    strength = strength[..., None]
    decay = decays(log_decay, document, before)
    since, until, across = decay.since[..., None], decay.until[..., None], decay.across[..., None, None]
    # What a position writes depends on what those before it wrote: a triangular system, with 1 on the diagonal.
    influence = strength * (key @ key.mT) * decay.between
    wanted = strength * (value - since * (key @ state))
    written = jax.lax.linalg.triangular_solve(influence, wanted, left_side=True, lower=True, unit_diagonal=True)
    out = since * (query @ state) + ((query @ key.mT) * decay.between) @ written
    state = across * state + (until * key).mT @ written
    return (state, decay.document), jnp.moveaxis(out, 1, 2)
