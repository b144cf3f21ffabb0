# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation: the gradient of the whole batch, from microbatches that fit into memory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError

from ._precision import as_wide, widen

LossFn = Callable[[Any, Any, Array | None], tuple[Array, Array, Any]]
# From parameters, a microbatch and its number to the sum of losses, to be differentiated, and what is kept of it.
_Loss = Callable[[Any, Any, Array], tuple[Array, Any]]


class Mean(NamedTuple):
    """A mean in `aux` that has a weight of its own: `sum / weight`, each summed over all microbatches."""

    sum: Array
    weight: Array


def accumulate(loss: _Loss, params: Any, zeros: Any, microbatches: Any) -> tuple[Any, Any]:
    """Returns the sum of the gradients of all microbatches, added to `zeros`, and what the loss reports of each."""

    def body(total: Any, each: Any) -> tuple[Any, Any]:
        grads, stats = jax.grad(loss, has_aux=True)(params, *each)
        return jax.tree.map(jnp.add, total, widen(grads)), stats

    count = jax.tree.leaves(microbatches)[0].shape[0]
    each = (microbatches, jnp.arange(count, dtype=jnp.int32))
    if count > 1:
        return jax.lax.scan(body, zeros, each)
    grads, stats = jax.grad(loss, has_aux=True)(params, *jax.tree.map(lambda x: x[0], each))
    return widen(grads), jax.tree.map(lambda x: x[None], stats)


def value_and_grad(
    loss_fn: LossFn,
    params: Any,
    batch: Any,
    rng: Array | None = None,
    num_microbatches: int = 1,
    schedule: Callable[[_Loss, Any, Any, Any], tuple[Any, Any]] = accumulate,
) -> tuple[tuple[Array, Array, Any], Any]:
    """Returns `(loss, weight, aux), grads` of a batch, computed from microbatches.

    `loss_fn(params, microbatch, rng)` returns a sum of weighted losses, the sum of their weights, and `aux`, a tree of
    arrays. The loss is the sum of all losses divided by the sum of all weights, and the gradient is its gradient: but
    for rounding the same for any number of microbatches, however much each of them weighs. Sums and results
    are in float32. A batch of weight 0 has loss 0 and gradient 0.

    An auxiliary loss that is not a sum over rows (balance of experts, say) goes in as `loss_sum + aux_loss *
    weight_sum`. It then counts as its mean over microbatches, weighted by their weights; `aux` is averaged in the same
    way. Such means do depend on the split where the value is not itself a weighted mean over rows. A `Mean` in `aux`
    has a weight of its own, comes back as a number, and does not depend on the split.

    Args:
        batch: a tree of arrays whose first dimension is the batch. Microbatch i of n has the rows i, i + n, ..., so
            that a batch split over devices stays where it is. A loss that needs several rows at once needs n = 1.
        rng: microbatch i gets this key with i folded in; None is passed on as it is.
        schedule: how the microbatches are run, as `accumulate` says.
    """
    _check_split(batch, num_microbatches)

    def loss_of(params: Any, microbatch: Any, index: Array) -> tuple[Array, Any]:
        stats = loss_fn(params, microbatch, None if rng is None else jax.random.fold_in(rng, index))
        return stats[0], jax.tree.map(lambda x: as_wide(jnp.asarray(x)), stats)

    split = jax.tree.map(lambda x: _split(x, num_microbatches), batch)
    zeros = jax.tree.map(jnp.zeros_like, widen(params))
    grads, (losses, weights, aux) = schedule(loss_of, params, zeros, split)
    weight = jnp.sum(weights)
    divisor = jnp.where(weight == 0, 1.0, weight)
    loss, grads = jax.tree.map(lambda x: x / divisor.astype(x.dtype), (jnp.sum(losses), grads))
    means = jax.tree.map(lambda x: _mean(weights, divisor, x), aux, is_leaf=lambda x: isinstance(x, Mean))
    return (loss, weight, means), grads


def _mean(weights: Array, divisor: Array, value: Any) -> Array:
    """Returns the mean over microbatches, by their weights, which sum up to `divisor`; or by those of a `Mean`."""
    if isinstance(value, Mean):
        total = jnp.sum(value.weight, axis=0)
        return jnp.sum(value.sum, axis=0) / jnp.where(total == 0, 1.0, total)
    return _weighted_sum(weights, value) / divisor.astype(value.dtype)


def _split(x: Array, count: int) -> Array:
    """Reshapes `[B, ...]` to `[count, B / count, ...]`, the rows dealt out in turn."""
    return jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)


def _weighted_sum(weights: Array, values: Array) -> Array:
    """Sums over the first dimension; a value of weight 0 does not count, not even if it is nan."""
    weights = weights.reshape(-1, *[1] * (values.ndim - 1)).astype(values.dtype)
    return jnp.sum(jnp.where(weights == 0, 0.0, weights * values), axis=0)


def _check_split(batch: Any, count: int) -> None:
    if count < 1:
        raise ConfigError(f"num_microbatches is {count}, expected at least 1.")
    rows: dict[str, int] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(batch):
        name = "batch" + jax.tree_util.keystr(keys)
        if not jnp.ndim(leaf):
            raise ConfigError(f"{name} is a scalar. Each array of a batch needs a first dimension, the batch.")
        rows[name] = jnp.shape(leaf)[0]
    if not rows:
        raise ConfigError("The batch holds no arrays.")
    first, size = next(iter(rows.items()))
    for name, other in rows.items():
        if other != size:
            raise ConfigError(f"{name} has {other} rows, {first} has {size}. All arrays of a batch have as many.")
    if size % count:
        divisors = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
        raise ConfigError(
            f"{first}: {size} rows cannot be split into num_microbatches ({count}) equal parts.\n"
            f"  Use one of {divisors}."
        )
