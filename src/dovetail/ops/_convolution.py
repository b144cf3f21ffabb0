# SPDX-License-Identifier: Apache-2.0
"""Causal convolution of each channel on its own, over a few positions.

Shape letters: B batch, T time, W width, C channels (any number of dimensions).
"""

import jax.numpy as jnp
from jax import Array


def causal_convolution(x: Array, weight: Array, tail: Array, *, document: Array) -> Array:
    """Returns `sum over j of weight[W - 1 - j] * x[t - j]`, without what belongs to another document.

    Sums are in float32, the result has the dtype of `x`.

    Args:
        x: `[B, T, *C]`.
        weight: `[W, *C]`.
        tail: `[B, W - 1, *C]`: what came before `x`, of document 0.
        document: `[B or 1, T]`: numbers that do not fall.
    """
    width, length = weight.shape[0], x.shape[1]
    known = jnp.concatenate([tail, x], axis=1).astype(jnp.float32)
    owner = jnp.pad(document, ((0, 0), (width - 1, 0)))
    total = jnp.zeros(x.shape, jnp.float32)
    for start in range(width):
        same = owner[:, start : start + length] == document
        same = same.reshape(*same.shape, *[1] * (x.ndim - 2))
        total += jnp.where(same, known[:, start : start + length], 0.0) * weight[start].astype(jnp.float32)
    return total.astype(x.dtype)


def convolution_tail(x: Array, tail: Array, *, document: Array, count: Array) -> Array:
    """Returns the tail after the first `count` `[B]` positions of each row, with 0 for what is of another document."""
    width = tail.shape[1]
    known = jnp.concatenate([tail, x], axis=1)
    owner = jnp.broadcast_to(jnp.pad(document, ((0, 0), (width, 0))), known.shape[:2])
    places = count[:, None] + jnp.arange(width)
    same = jnp.take_along_axis(owner, places, axis=1) == document[:, -1:]
    trailing = [1] * (x.ndim - 2)
    found = jnp.take_along_axis(known, places.reshape(*places.shape, *trailing), axis=1)
    return jnp.where(same.reshape(*same.shape, *trailing), found, 0).astype(x.dtype)
