# SPDX-License-Identifier: Apache-2.0
"""The training step and the evaluation step: pure functions of state and batch, compiled once."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from dovetail.module import Loss, Objective, call, init_run_state, merged, next_run_state, specs
from dovetail.optim import Learner, LearnerState, Mean, accumulate, value_and_grad
from dovetail.parallel import MeshLayout, one_forward_one_backward

from ._loss_scales import LossScales
from ._spikes import Spikes

Arrays = Mapping[str, Any]  # A batch, by field.
Metrics = dict[str, Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a step changes. With the config and the position in the data, all that a run is."""

    step: Array  # Steps done.
    params: Any
    learner: LearnerState
    run_state: Any  # What modules keep for the whole run, and no gradient reaches.
    spikes: Any = ()  # The record of losses; () where no spikes are looked for.


def init_state(params: Any, learner: Learner, run_state: Any = None, spikes: Spikes | None = None) -> TrainState:
    """Returns the state before the first step."""
    record = spikes.init() if spikes else ()
    return TrainState(jnp.zeros((), jnp.int32), params, learner.init(params), run_state or {}, record)


def gradients_of(
    model: Objective,
    *,
    num_microbatches: int,
    dtype: DTypeLike | None,
    layout: MeshLayout | None = None,
    scales: LossScales | None = None,
    trainable: Any = None,
) -> Callable[..., tuple[tuple[Array, Array, Metrics], Any]]:
    """Returns the function from parameters, batch, key, step and run state to `(loss, weight, metrics), gradients`.

    Where modules hand something in for their run state, that is `metrics["updates"]`, by path.

    Args:
        scales: of auxiliary losses.
        trainable: a tree like the parameters, of booleans: the gradient of the others is 0, and takes nothing; by
            default, all but those that modules have declared as frozen.
    """
    loss = loss_function(model, dtype=dtype, layout=layout, scales=scales)
    trainable = jax.tree.map(lambda spec: not spec.frozen, specs(model)) if trainable is None else trainable
    schedule, count, whole = accumulate, num_microbatches, all(jax.tree.leaves(trainable))
    pipelining = layout.pipelining if layout else None
    if pipelining is not None and pipelining.schedule == "one_forward_one_backward":
        schedule, count, whole = one_forward_one_backward, num_microbatches * pipelining.microbatches, True

    def gradients(
        params: Any, batch: Arrays, rng: Array | None, step: Array | None = None, run_state: Any = None
    ) -> tuple[tuple[Array, Array, Metrics], Any]:
        if whole:
            return value_and_grad(lambda *each: loss(*each, step, run_state), params, batch, rng, count, schedule)

        def of_some(some: Any, batch: Arrays, rng: Array | None) -> tuple[Array, Array, Any]:
            whole = jax.tree.map(lambda is_in, x, old: x if is_in else old, trainable, some, params)
            return loss(whole, batch, rng, step, run_state)

        some = jax.tree.map(lambda is_in, x: x if is_in else None, trainable, params)
        found, grads = value_and_grad(of_some, some, batch, rng, count, schedule)
        return found, jax.tree.map(lambda is_in, g, x: g if is_in else jnp.zeros_like(x), trainable, grads, params)

    return gradients


def loss_function(
    model: Objective,
    *,
    dtype: DTypeLike | None,
    layout: MeshLayout | None = None,
    scales: LossScales | None = None,
) -> Callable[..., tuple[Array, Array, dict[str, Any]]]:
    """Returns the function whose gradient is taken: the sum of losses over a batch, its weight, and metrics.

    It is one of parameters, batch, key, the number of the step, by which auxiliary losses are scaled, and the state of
    the run, by default that before the first step. The sum has the auxiliary losses in it. The metrics have `loss`,
    without them, and each of them by its own name.
    """

    def loss(
        params: Any, batch: Arrays, rng: Array | None, step: Array | None = None, run_state: Any = None
    ) -> tuple[Array, Array, dict[str, Any]]:
        options = {"rng": rng, "train": True, "dtype": dtype, "layout": layout, "step": 0 if step is None else step}
        both = merged(params, init_run_state(model) if run_state is None else run_state)
        found, collected = call(model, both, batch, method="loss", **options)
        losses = collected.losses if scales is None or step is None else scales.apply(collected.losses, step)
        extra = {f"loss/{path}": jnp.sum(value) for path, value in losses.items()}
        total = found.sum + sum(extra.values(), jnp.zeros(())) * found.weight
        count = jnp.where(found.weight == 0, 1.0, found.weight)
        summaries = {path: jnp.mean(value) for path, value in collected.summaries.items()}
        metrics = {name: Mean(*each) for name, each in found.metrics.items()}
        updates = {"updates": collected.updates} if collected.updates else {}
        return total, found.weight, {"loss": found.sum / count, **metrics, **extra, **summaries, **updates}

    return loss


def train_step(
    model: Objective,
    learner: Learner,
    *,
    seed: int,
    num_microbatches: int,
    dtype: DTypeLike | None,
    layout: MeshLayout | None = None,
    scales: LossScales | None = None,
    spikes: Spikes | None = None,
    gradient_sums: Callable[[Any, Array], Array] | None = None,
) -> Callable[[TrainState, Arrays], tuple[Any, ...]]:
    """Returns the function that makes one step. Random numbers follow from the seed and the number of the step.

    It returns the new state and metrics; then, if there are any, what `gradient_sums` says of gradients and the old
    number of the step.
    """
    how = {"num_microbatches": num_microbatches, "dtype": dtype, "layout": layout, "scales": scales}
    gradients = gradients_of(model, trainable=learner.trainable, **how)

    def step(state: TrainState, batch: Arrays) -> tuple[Any, ...]:
        rng = jax.random.fold_in(jax.random.key(seed), state.step)
        (mean, weight, aux), grads = gradients(state.params, batch, rng, state.step, state.run_state)
        sums = (gradient_sums(grads, state.step),) if gradient_sums else ()
        updates: Any = aux.pop("updates", {})
        with jax.named_scope("learner"):
            accepts = functools.partial(_is_usual, spikes, state.spikes, mean) if spikes else None
            params, slots, metrics = learner.update(state.params, grads, state.learner, loss=mean, accepts=accepts)
        new = next_run_state(model, state.run_state, updates)
        accepted = slots.num_updates > state.learner.num_updates
        run_state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), new, state.run_state)
        record: Any = ()
        if spikes:
            record, found = spikes.record(state.spikes, mean, metrics["grad_norm"], accepted)
            metrics |= found
        state = TrainState(state.step + 1, params, slots, run_state, record)
        return state, {**aux, "total_loss": mean, "weight": weight, **metrics}, *sums

    return step


def _is_usual(spikes: Spikes, record: Any, loss: Array, norm: Array) -> Array:
    return ~spikes.judge(record, loss, norm).spike


def eval_step(model: Objective, *, dtype: DTypeLike | None, layout: MeshLayout | None = None) -> Callable[..., Loss]:
    """Returns the function that gives the loss of one batch, without auxiliary losses, after a number of steps."""

    def loss(params: Any, batch: Arrays, step: Array | None = None) -> Loss:
        return call(model, params, batch, method="loss", step=step, dtype=dtype, layout=layout)[0]

    return loss
