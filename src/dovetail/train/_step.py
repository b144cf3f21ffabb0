# SPDX-License-Identifier: Apache-2.0
"""The training step and the evaluation step: pure functions of state and batch, compiled once."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from dovetail.data import DataError
from dovetail.module import Module, call
from dovetail.optim import Learner, LearnerState, LossFn, one_after_the_other, value_and_grad
from dovetail.parallel import MeshLayout, one_forward_one_backward

Batch = Mapping[str, Any]
Metrics = dict[str, Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a step changes. With the config and the position in the data, all that a run is."""

    step: Array  # Steps done.
    params: Any
    learner: LearnerState


def init_state(params: Any, learner: Learner) -> TrainState:
    """Returns the state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), params, learner.init(params))


_FIELDS = {"tokens": "int32", "targets": "int32", "weights": "float32", "segments": "int32", "positions": "int32"}


def abstract_batch(rows: int, tokens: int, sharding: Any = None) -> Batch:
    """Returns shapes, dtypes and places of a batch."""
    return {name: jax.ShapeDtypeStruct((rows, tokens), dtype, sharding=sharding) for name, dtype in _FIELDS.items()}


def check_batch(batch: Batch) -> None:
    """Raises if a batch has other fields than a model trains on, or rows that are not rows of tokens.

    Nothing is left out in silence. Rows are dealt out to microbatches and devices one by one, so that what belongs
    together, such as the two answers of a preference, has to be in one row.
    """
    found = {name: f"{value.dtype}{list(value.shape)}" for name, value in batch.items()}
    if found.keys() != _FIELDS.keys():
        unknown = ", ".join(f"{name!r} ({found[name]})" for name in found if name not in _FIELDS)
        missing = ", ".join(repr(name) for name in _FIELDS if name not in found)
        parts = [f"has {unknown}, which nothing reads"] * bool(unknown) + [f"lacks {missing}"] * bool(missing)
        raise DataError(
            f"the batch {', and '.join(parts)}. It has to have exactly: {', '.join(_FIELDS)}.\n"
            "  Change what the input yields."
        )
    rows = jnp.shape(batch["tokens"])
    wrong = [name for name, value in batch.items() if len(rows) != 2 or value.shape != rows]
    if wrong:
        name = "tokens" if "tokens" in wrong else wrong[0]
        raise DataError(
            f"{name!r} of the batch is {found[name]}, expected [rows, tokens], as all fields alike.\n"
            "  Rows are dealt out to microbatches and devices one by one: put what belongs together into one row."
        )


def gradients_of(
    model: Module, *, num_microbatches: int, dtype: DTypeLike | None, layout: MeshLayout | None = None
) -> Callable[[Any, Batch, Array | None], tuple[tuple[Array, Array, Metrics], Any]]:
    """Returns the function from parameters, batch and key to `(loss, weight, metrics), gradients`."""
    loss = loss_function(model, dtype=dtype, layout=layout)

    schedule, count = one_after_the_other, num_microbatches
    pipelining = layout.pipelining if layout else None
    if pipelining is not None and pipelining.schedule == "one_forward_one_backward":
        schedule, count = one_forward_one_backward, num_microbatches * pipelining.microbatches

    def gradients(params: Any, batch: Batch, rng: Array | None) -> tuple[tuple[Array, Array, Metrics], Any]:
        check_batch(batch)
        return value_and_grad(loss, params, batch, rng, count, schedule)

    return gradients


def loss_function(model: Module, *, dtype: DTypeLike | None, layout: MeshLayout | None = None) -> LossFn:
    """Returns the function whose gradient is taken: the sum of losses over a batch, its weight, and metrics.

    The sum has the auxiliary losses in it. The metrics have `loss`, without them, and each of them by its own name.
    """

    def loss(params: Any, batch: Batch, rng: Array | None) -> tuple[Array, Array, Metrics]:
        found, collected = _run(model, params, batch, rng=rng, train=True, dtype=dtype, layout=layout)
        extra = {f"loss/{path}": jnp.sum(value) for path, value in collected.losses.items()}
        total = found.loss + sum(extra.values(), jnp.zeros(())) * found.weight
        count = jnp.where(found.weight == 0, 1.0, found.weight)
        summaries = {path: jnp.mean(value) for path, value in collected.summaries.items()}
        metrics = {"loss": found.loss / count, "accuracy": found.correct / count}
        return total, found.weight, {**metrics, **extra, **summaries}

    return loss


def train_step(
    model: Module,
    learner: Learner,
    *,
    seed: int,
    num_microbatches: int,
    dtype: DTypeLike | None,
    layout: MeshLayout | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns the function that makes one step. Random numbers follow from the seed and the number of the step."""
    gradients = gradients_of(model, num_microbatches=num_microbatches, dtype=dtype, layout=layout)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rng = jax.random.fold_in(jax.random.key(seed), state.step)
        (mean, weight, aux), grads = gradients(state.params, batch, rng)
        with jax.named_scope("learner"):
            params, slots, metrics = learner.update(state.params, grads, state.learner, loss=mean)
        return TrainState(state.step + 1, params, slots), {**aux, "total_loss": mean, "tokens": weight, **metrics}

    return step


def eval_step(
    model: Module, *, dtype: DTypeLike | None, layout: MeshLayout | None = None
) -> Callable[[Any, Batch], tuple[Array, Array, Array]]:
    """Returns the function that gives the sums of cross-entropy, weight and hits of one batch."""

    def step(params: Any, batch: Batch) -> tuple[Array, Array, Array]:
        found, _ = _run(model, params, batch, rng=None, train=False, dtype=dtype, layout=layout)
        return found.loss, found.weight, found.correct

    return step


def _run(model: Module, params: Any, batch: Batch, **options: Any) -> tuple[Any, Any]:
    check_batch(batch)
    return call(
        model,
        params,
        batch["tokens"],
        batch["targets"],
        batch["weights"],
        method="loss",
        positions=batch["positions"],
        segments=batch["segments"],
        **options,
    )
