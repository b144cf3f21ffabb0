# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy of a language model without all logits in memory at once.

Logits of N tokens and V words are N x V numbers, often the largest array of a training step. Here they are made for a
chunk of tokens at a time and made again in the backward pass.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ._work import is_counted


class TokenLoss(NamedTuple):
    """Sums over tokens, so that batches can be added before dividing: the mean is `loss / weight`."""

    loss: Array  # Cross-entropy times weight.
    weight: Array
    correct: Array  # Weight of the tokens whose most likely word, the first among equals, is the target.
    z_loss: Array  # What the z-loss adds to the loss that is trained, times weight.


def token_loss(logits: Array, targets: Array, weights: Array, *, z_loss: float = 0.0) -> TokenLoss:
    """Returns the weighted sums for logits `[N, V]`, in float32. A token of weight 0 may have any logits, nan too.

    `z_loss` times the square of the log of the normaliser keeps logits from drifting (Chowdhery et al., 2022,
    arXiv:2204.02311, section 5).
    """
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    logits, largest = _where_counted(weights, largest, logits, largest)
    size = logits.shape[-1]
    outside = (targets < 0) | (targets >= size)
    # What does not count may be -100 or any other number; what counts and is no word gives nan.
    targets = jnp.where(outside, jnp.where(weights == 0, 0, size), targets)
    normaliser = largest + jnp.log(jnp.sum(jnp.exp(logits - largest[:, None]), axis=-1))
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1, mode="fill", fill_value=jnp.nan)[:, 0]
    (loss,) = _where_counted(weights, chosen, normaliser - chosen)
    # The word that greedy decoding draws, as by argmax, which compilers do not vectorise.
    words = jnp.arange(size, dtype=targets.dtype)
    best = jnp.min(jnp.where(logits == largest[:, None], words, size), axis=-1)
    return TokenLoss(
        loss=jnp.sum(loss * weights),
        weight=jnp.sum(weights),
        correct=jnp.sum((best == targets).astype(jnp.float32) * weights),
        z_loss=jnp.sum(z_loss * jnp.square(normaliser) * weights) if z_loss else jnp.zeros((), jnp.float32),
    )


def _where_counted(weights: Array, finite: Array, *values: Array) -> tuple[Array, ...]:
    """Returns arrays `[N, ...]` with 0 for tokens of weight 0 whose `finite` is not: 0 times nan would be nan.

    Done before anything is computed, this holds for gradients as well.
    """
    lost = (weights == 0) & ~jnp.isfinite(finite)
    return tuple(jnp.where(lost.reshape(-1, *[1] * (x.ndim - 1)), 0, x) for x in values)


def chunked_token_loss(
    hidden: Array,
    logits_of: Callable[[Array], Array],
    targets: Array,
    weights: Array,
    *,
    chunk: int,
    z_loss: float = 0.0,
) -> TokenLoss:
    """Returns `token_loss(logits_of(hidden), ...)` with at most `chunk` rows of logits in memory.

    Args:
        hidden: `[N, D]`.
        logits_of: maps `[n, D]` to `[n, V]`, row by row.
        targets, weights: `[N]`.
    """
    count = hidden.shape[0]
    (hidden,) = _where_counted(weights, jnp.max(jnp.abs(hidden), axis=-1), hidden)
    if count <= chunk or is_counted():  # What fills up the last chunk is no work of the model.
        return token_loss(logits_of(hidden), targets, weights, z_loss=z_loss)
    padding = -count % chunk

    def split(x: Array) -> Array:
        return jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, chunk, *x.shape[1:])

    @jax.checkpoint
    def one(hidden: Array, targets: Array, weights: Array) -> TokenLoss:
        return token_loss(logits_of(hidden), targets, weights, z_loss=z_loss)

    parts = jax.lax.map(lambda rows: one(*rows), (split(hidden), split(targets), split(weights)))
    return jax.tree.map(jnp.sum, parts)
