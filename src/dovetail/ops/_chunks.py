# SPDX-License-Identifier: Apache-2.0
"""Recurrences over a sequence, a chunk of positions at a time.

Inside of a chunk all positions are computed at once, as matrix products; from chunk to chunk goes a state. The memory
for activations is that of one chunk, and a chunk of one position is a step of decoding.

Shape letters: B batch, T time, Q positions of a chunk, H heads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Step = Callable[[Any, Any], tuple[Any, Array]]


def scan_chunks(step: Step, carry: Any, inputs: Any, chunk: int) -> tuple[Any, Array]:
    """Runs `step(carry, inputs) -> (carry, outputs)` over chunks, and returns the last carry and all outputs.

    In the backward pass the inside of a chunk is computed again.

    Args:
        inputs: a tree of `[B, T, ...]`; what fills up the last chunk is 0.
    """
    length = jax.tree.leaves(inputs)[0].shape[1]
    if length <= chunk:
        return step(carry, inputs)
    count = -(-length // chunk)

    def split(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0), (0, count * chunk - length)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], count, chunk, *x.shape[2:]), 1, 0)

    body = jax.checkpoint(step, prevent_cse=False)  # A scan keeps the two passes apart by itself.
    carry, out = jax.lax.scan(body, carry, jax.tree.map(split, inputs))
    out = jnp.moveaxis(out, 0, 1)
    return carry, out.reshape(out.shape[0], -1, *out.shape[3:])[:, :length]


class Decay(NamedTuple):
    """How much is left of what came in at one position, at another; 0 if they belong to different documents."""

    between: Array  # [B, H, Q, Q]: from the second to the first, which is not before it.
    since: Array  # [B, H, Q]: from the state before the chunk to each position.
    until: Array  # [B, H, Q]: from each position to the end of the chunk.
    across: Array  # [B, H]: from the state before the chunk to its end.
    document: Array  # [B]: the document at the end.


def decays(log_decay: Array, document: Array, before: Array) -> Decay:
    """Returns the decays of one chunk.

    Args:
        log_decay: `[B, Q, H]`: logarithm, at most 0, of what a position leaves of what was there.
        document: `[B or 1, Q]`: numbers that do not fall, except at the end, where 0 fills up a chunk.
        before: `[B]`: the document of the state before the chunk.
    """
    total = jnp.cumsum(jnp.moveaxis(log_decay, 1, 2), axis=-1)
    place = jnp.arange(total.shape[-1])
    last = jnp.maximum(jnp.max(document, axis=1), before)
    same = (document[:, :, None] == document[:, None, :]) & (place[:, None] >= place)
    gap = total[..., :, None] - total[..., None, :]
    return Decay(
        between=jnp.exp(jnp.where(same[:, None], gap, -jnp.inf)),
        since=jnp.where((document == before[:, None])[:, None], jnp.exp(total), 0.0),
        until=jnp.where((document == last[:, None])[:, None], jnp.exp(total[..., -1:] - total), 0.0),
        across=jnp.where((last == before)[:, None], jnp.exp(total[..., -1]), 0.0),
        document=last,
    )
