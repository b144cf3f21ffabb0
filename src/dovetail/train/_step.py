# SPDX-License-Identifier: Apache-2.0
"""The training step and the evaluation step: pure functions of state and batch, compiled once."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from dovetail.module import Module, call
from dovetail.optim import Learner, LearnerState, value_and_grad

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


def train_step(
    model: Module, learner: Learner, *, seed: int, num_microbatches: int, dtype: DTypeLike | None
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns the function that makes one step. Random numbers follow from the seed and the number of the step."""

    def loss(params: Any, batch: Batch, rng: Array | None) -> tuple[Array, Array, Metrics]:
        found, collected = _run(model, params, batch, rng=rng, train=True, dtype=dtype)
        extra = {f"loss/{path}": jnp.sum(value) for path, value in collected.losses.items()}
        total = found.loss + sum(extra.values(), jnp.zeros(())) * found.weight
        count = jnp.where(found.weight == 0, 1.0, found.weight)
        summaries = {path: jnp.mean(value) for path, value in collected.summaries.items()}
        accuracy = {"accuracy": found.correct / count, "token_loss": found.loss / count}
        return total, found.weight, {**accuracy, **extra, **summaries}

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rng = jax.random.fold_in(jax.random.key(seed), state.step)
        (mean, weight, aux), grads = value_and_grad(loss, state.params, batch, rng, num_microbatches)
        params, slots, metrics = learner.update(state.params, grads, state.learner, loss=mean)
        return TrainState(state.step + 1, params, slots), {"loss": mean, "tokens": weight, **aux, **metrics}

    return step


def eval_step(model: Module, *, dtype: DTypeLike | None) -> Callable[[Any, Batch], tuple[Array, Array, Array]]:
    """Returns the function that gives the sums of loss, weight and hits of one batch."""

    def step(params: Any, batch: Batch) -> tuple[Array, Array, Array]:
        found, _ = _run(model, params, batch, rng=None, train=False, dtype=dtype)
        return found.loss, found.weight, found.correct

    return step


def _run(
    model: Module, params: Any, batch: Batch, *, rng: Array | None, train: bool, dtype: DTypeLike | None
) -> tuple[Any, Any]:
    return call(
        model,
        params,
        batch["tokens"],
        batch["targets"],
        batch["weights"],
        method="loss",
        positions=batch["positions"],
        segments=batch["segments"],
        rng=rng,
        train=train,
        dtype=dtype,
    )
