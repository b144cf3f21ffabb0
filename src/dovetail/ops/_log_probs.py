# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of given tokens without all logits in memory at once: see `chunked_token_loss`.

Shape letters: N tokens, D model dim, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from ._work import is_counted


def log_probs(logits: Array, targets: Array, weights: Array) -> Array:
    """Returns the logarithm of the probability of each target `[N]`, in float32, for logits `[N, V]`.

    Where the weight is 0 it is 0, whatever logits and target are. A target that counts and is no word gives nan.
    """
    counts = weights != 0
    logits = jnp.where(counts[:, None], logits.astype(jnp.float32), 0)
    targets = jnp.where(counts, targets, 0)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1, mode="fill", fill_value=jnp.nan)[:, 0]
    chosen = jnp.where(targets < 0, jnp.nan, chosen)  # Which would be counted from the end.
    return jnp.where(counts, chosen - jax.nn.logsumexp(logits, axis=-1), 0)


def chunked_log_probs(
    hidden: Array, logits_of: Callable[[Array], Array], targets: Array, weights: Array, *, chunk: int
) -> Array:
    """Returns `log_probs(logits_of(hidden), ...)` with at most `chunk` rows of logits in memory, forward and backward.

    Args:
        hidden: `[N, D]`.
        logits_of: maps `[n, D]` to `[n, V]`, row by row.
        targets, weights: `[N]`.
    """
    count = hidden.shape[0]
    hidden = jnp.where((weights != 0)[:, None], hidden, 0)
    if count <= chunk or is_counted():  # What fills up the last chunk is no work of the model.
        return log_probs(logits_of(hidden), targets, weights)
    padding = -count % chunk

    def split(x: Array) -> Array:
        return jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, chunk, *x.shape[1:])

    @jax.checkpoint
    def one(hidden: Array, targets: Array, weights: Array) -> Array:
        return log_probs(logits_of(hidden), targets, weights)

    parts = jax.lax.map(lambda rows: one(*rows), (split(hidden), split(targets), split(weights)))
    return parts.reshape(-1)[:count]
