# SPDX-License-Identifier: Apache-2.0
"""Pipelines: a loop over layers whose stages lie on different devices and work on different microbatches.

All stages run at once, as one program over a new first dimension that is split over the mesh; after each tick, what
they made moves on by one stage. A stage that has nothing to do yet, or no more, works on something real, and the
result is thrown away.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from dovetail.config import ConfigError
from dovetail.module import Axes, Collected, Key, Layers, folded

if TYPE_CHECKING:
    from ._layout import MeshLayout


class Pipelining(NamedTuple):
    """How the layers of a loop are spread over stages, and a batch over microbatches."""

    stages: int
    microbatches: int
    rounds: int  # How often a microbatch goes through all stages: 1, or more where stages hold several short pieces.
    schedule: Literal["forward_first", "one_forward_one_backward"]
    axis: str  # The mesh axis of the stages, for `jax.vmap(..., spmd_axis_name=axis)`.


class Schedule(NamedTuple):
    """What each stage does in each tick: arrays `[ticks, stages]`."""

    microbatch: np.ndarray
    turn: np.ndarray  # Which of its pieces of the layers the stage runs.
    busy: np.ndarray  # Whether it has anything to do; if not, `microbatch` is 0.


def schedule(pipelining: Pipelining) -> Schedule:
    """Returns the order in which the stages work.

    A microbatch that has left the last stage, and has rounds to go, enters the first one again in the next tick: they
    go round in groups of as many as there are stages. Where groups are full, the stages are idle for a share of
    `(stages - 1) / (microbatches * rounds + stages - 1)` of the ticks.
    """
    stages, microbatches, rounds = pipelining.stages, pipelining.microbatches, pipelining.rounds
    groups, place = divmod(microbatches - 1, stages)  # Where the last microbatch stands.
    ticks = groups * stages * rounds + (rounds - 1) * stages + place + stages
    step = np.arange(ticks)[:, None] - np.arange(stages)
    group, step_in_group = np.divmod(step, stages * rounds)
    turn, place = np.divmod(step_in_group, stages)
    microbatch = group * stages + place
    busy = (step >= 0) & (microbatch < microbatches)
    return Schedule(np.where(busy, microbatch, 0), turn, busy)


STAGE = "pipeline_stage"  # The name of the jitted body of a marked loop.
SIDE_BY_SIDE = "stages"  # The name of the dimension along which stages run side by side, by `jax.vmap`.
_marked: ContextVar[list[tuple[str, "MeshLayout"]] | None] = ContextVar("marked", default=None)


def largest_of_stages(x: Array) -> Array:
    """Returns the largest of what the stages of a pipeline have, so that all of them take the same branch."""
    try:
        jax.lax.axis_size(SIDE_BY_SIDE)
    except NameError:  # No pipeline.
        return x
    return jax.lax.pmax(x, SIDE_BY_SIDE)


@contextmanager
def marked_loops() -> Generator[list[tuple[str, "MeshLayout"]], None, None]:
    """Says to loops over layers, traced in this context, that another schedule will take the program apart.

    A loop that can be pipelined then is a scan over its stages, of which the body is one call of a function named
    `STAGE`, on all that it is given: whoever asks has split the batch. The list gets the path of its module, and its
    layout.
    """
    found = list[tuple[str, "MeshLayout"]]()
    token = _marked.set(found)
    try:
        yield found
    finally:
        _marked.reset(token)


class _Loop(NamedTuple):
    """A loop over layers, as `Layout.loop` is given it."""

    layers: Layers
    num_layers: int
    x: Any
    each: Any
    inputs: Any
    key: Key


def in_stages(
    layout: "MeshLayout", layers: Layers, path: str, count: int, x: Any, each: Any, inputs: Any, key: Key
) -> tuple[Any, Collected] | None:
    """Runs a loop over layers as a pipeline, or marked as one; None if stages do not divide its layers or its rows."""
    pipelining, marked = layout.pipelining, _marked.get()
    if pipelining is None or count % (pipelining.stages * pipelining.rounds):
        return None
    _check_floats(path, x)
    loop = _Loop(layers, count, x, each, inputs, key)
    if marked is not None:
        found = _marked_loop(loop, layout, pipelining.stages)
        marked.append((path, layout))
        return found
    return None if _rows(x) % pipelining.microbatches else _pipelined(loop, layout, pipelining)


def _check_floats(path: str, x: Any) -> None:
    """Raises if something that goes from stage to stage can have no gradient, which comes back the same way."""
    for keys, leaf in jax.tree_util.tree_leaves_with_path(x):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ConfigError(
                f"{path}: what goes from stage to stage of a pipeline must be of a floating-point type; found "
                f"{leaf.dtype}{list(leaf.shape)}, {jax.tree_util.keystr(keys)}.\n"
                "  What layers publish goes along: let them publish floats, or use a mesh without pipeline."
            )


def _marked_loop(loop: _Loop, layout: "MeshLayout", stages: int) -> tuple[Any, Collected]:
    count = loop.num_layers

    def stage(x: Any, piece: Any) -> tuple[Any, Collected]:
        return loop.layers(count // stages, x, piece, loop.inputs, loop.key, layout.in_stage())

    stage.__name__ = STAGE
    pieces = jax.tree.map(lambda leaf: leaf.reshape(stages, count // stages, *leaf.shape[1:]), loop.each)
    x, found = jax.lax.scan(jax.jit(stage), loop.x, pieces, length=stages)
    return x, jax.tree.map(lambda leaf: leaf.reshape(count, *leaf.shape[2:]), found)


def _pipelined(loop: _Loop, layout: "MeshLayout", pipelining: Pipelining) -> tuple[Any, Collected]:
    """Runs a loop over layers as a pipeline; inputs whose first dimension is that of `x` are split with it.

    With one round, a stage holds layers that follow each other, as they are stored. With more, it holds every
    `stages`-th piece of them, and parameters (and their gradients) move between devices once per step. What layers
    report is averaged over the microbatches.
    """
    stages, microbatches, rounds, _, axis = pipelining
    key, rows, length = loop.key, _rows(loop.x), loop.num_layers // (stages * rounds)
    leaves, tree = jax.tree.flatten(loop.inputs)
    dealt = {i: _split_rows(leaf, microbatches) for i, leaf in enumerate(leaves) if np.shape(leaf)[:1] == (rows,)}

    def stage(pieces: Any, x: Any, microbatch: Array, turn: Array) -> tuple[Any, Collected]:
        rng = folded(key, lambda: microbatch)
        mine = [dealt[i][microbatch] if i in dealt else leaf for i, leaf in enumerate(leaves)]
        piece = jax.tree.map(lambda leaf: leaf[turn if rounds > 1 else 0], pieces)
        return loop.layers(length, x, piece, jax.tree.unflatten(tree, mine), rng, layout.in_stage())

    def tick(carry: Any, now: Any) -> tuple[Any, Collected]:
        (waiting, moving, finished), (microbatch, turn, start, stop) = carry, now
        new, waiting = _take(waiting, start)
        enters = (place == 0) & (turn == 0)
        moving = jax.tree.map(lambda new, old: jnp.where(_spread(enters, old), new, old), new, moving)
        moving, found = jax.vmap(stage, axis_name=SIDE_BY_SIDE, spmd_axis_name=axis)(
            pieces, lay(moving), microbatch, turn
        )
        finished = _put(finished, moving, stop)
        return (waiting, lay(jax.tree.map(_shift, moving)), finished), found

    def lay(moving: Any, *before: None) -> Any:
        return jax.tree.map(
            lambda leaf: layout.constrain(leaf, (*before, *stage_axes(leaf.ndim - len(before)))), moving
        )

    place = jnp.arange(stages)
    pieces = jax.tree.map(lambda leaf: _to_stages(leaf, pipelining), loop.each)
    waiting = lay(jax.tree.map(lambda leaf: _queue(_split_rows(leaf, microbatches), stages), loop.x), None)
    moving = jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf[-1]), waiting)
    finished = jax.tree.map(jnp.zeros_like, waiting)
    plan = schedule(pipelining)
    (_, _, finished), found = jax.lax.scan(tick, (waiting, moving, finished), _tables(plan, pipelining))
    x = jax.tree.map(lambda leaf: _merge_rows(_last(leaf[:-1])), finished)
    return x, jax.tree.map(lambda leaf: _mean(leaf, plan, pipelining), found)


def _rows(x: Any) -> int:
    return jax.tree.leaves(x)[0].shape[0]


def _split_rows(x: Array, count: int) -> Array:
    """Reshapes `[B, ...]` to `[count, B / count, ...]`, the rows dealt out in turn: they stay on their device."""
    return jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)


def _merge_rows(x: Array) -> Array:
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])


def _to_stages(x: Array, pipelining: Pipelining) -> Array:
    """Reshapes `[layers, ...]` to `[stages, rounds, layers of a piece, ...]`, the first dimension on the mesh."""
    stages, _, rounds, _, axis = pipelining
    x = x.reshape(stages, rounds, x.shape[0] // (stages * rounds), *x.shape[1:])
    x = jax.lax.with_sharding_constraint(x, PartitionSpec(axis, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)))
    return x if rounds == 1 else _interleaved(x, axis)


def _interleaved(x: Array, axis: str) -> Array:
    """Takes pieces of layers from where they follow each other, `[stages, rounds, ...]`, to where they are dealt out.

    Each device sends `rounds` pieces, one at a time; left to itself, the compiler gathers all of them on all devices.
    """
    stages, rounds = x.shape[:2]
    send = np.zeros((rounds, stages), int)  # In each step, which of its pieces a stage sends.
    turn = np.zeros((rounds, stages), int)  # And as which of its pieces a stage keeps what it gets.
    for step, stage in np.ndindex(rounds, stages):
        # Stages whose pieces of one number would go to the same stage, one in `spacing`, send different ones.
        same = math.gcd(stages, rounds)
        spacing = stages // same
        send[step, stage] = step - step % same + (step + stage // spacing) % same
        piece = stage * rounds + send[step, stage]
        turn[step, piece % stages] = piece // stages
    to = (np.arange(stages) * rounds + send) % stages

    def exchange(x: Array, send: Array, order: Array) -> Array:
        got = [jax.lax.ppermute(x[0, send[0, step]], axis, list(enumerate(to[step]))) for step in range(rounds)]
        return jnp.stack(got)[order[0]][None]

    run: Any = jax.shard_map(exchange, axis_names={axis}, in_specs=PartitionSpec(axis), out_specs=PartitionSpec(axis))
    return run(x, jnp.asarray(send.T), jnp.asarray(np.argsort(turn, axis=0).T))


def _from_stages(x: Array) -> Array:
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[3:])


def _queue(x: Array, stages: int) -> Array:
    """Takes `[microbatches, ...]` to `[microbatches + 1, stages, ...]`.

    The place at the end is what idle stages start from; in a queue of results, it is where theirs go. All stages have
    the whole queue, although only the first one reads it, so that nothing but `_shift` moves data in a tick.
    """
    x = jnp.concatenate([x, jax.lax.stop_gradient(x[:1])])
    return jnp.broadcast_to(x[:, None], (x.shape[0], stages, *x.shape[1:]))


def _last(x: Array) -> Array:
    """Returns what the last stage has, `[microbatches, stages, ...]` to `[microbatches, ...]`, in one collective."""
    at_last = jnp.arange(x.shape[1]) == x.shape[1] - 1
    return jnp.sum(jnp.where(_spread(at_last, x[0]), x, 0), axis=1, dtype=x.dtype)


@jax.custom_vjp
def _shift(x: Array) -> Array:
    """Moves the parts of all stages to the next one. JAX alone would move the gradient in two pieces."""
    return jnp.roll(x, 1, axis=0)


_shift.defvjp(lambda x: (_shift(x), None), lambda _, gradient: (jnp.roll(gradient, -1, axis=0),))


def stage_axes(ndim: int) -> Axes:
    """Returns the logical axes of what moves between stages: `[stages, B, T, D]`, or `[stages, B, ...]`."""
    return ("layers", "batch", "stream", None) if ndim == 4 else ("layers", "batch", *[None] * (ndim - 2))


def _spread(flags: Array, like: Array) -> Array:
    """Returns flags for the first dimensions of an array, with as many dimensions as that has."""
    return flags.reshape(*flags.shape, *[1] * (like.ndim - flags.ndim))


@jax.custom_vjp
def _take(waiting: Any, index: Array) -> tuple[Any, Any]:
    """Returns what waits at a place, and what waits. Each place is read once, but for the spare one.

    So its gradient is written there; JAX alone would add an array of zeros as large as all that waits, in each tick.
    """
    return jax.tree.map(lambda leaf: leaf[index], waiting), waiting


def _take_forward(waiting: Any, index: Array) -> tuple[Any, Any]:
    return _take(waiting, index), index


def _take_backward(index: Array, gradients: Any) -> tuple[Any, None]:
    taken, waiting = gradients
    return _put(waiting, taken, index), None


_take.defvjp(_take_forward, _take_backward)


def _put(places: Any, value: Any, index: Array) -> Any:
    return jax.tree.map(lambda all, one: jax.lax.dynamic_update_index_in_dim(all, one, index, 0), places, value)


def _tables(plan: Schedule, pipelining: Pipelining) -> tuple[Array, ...]:
    """Returns microbatch and turn of all stages, and which microbatch enters and which one leaves, for each tick."""
    enters = plan.busy[:, 0] & (plan.turn[:, 0] == 0)
    leaves = plan.busy[:, -1] & (plan.turn[:, -1] == pipelining.rounds - 1)
    start = np.where(enters, plan.microbatch[:, 0], pipelining.microbatches)
    stop = np.where(leaves, plan.microbatch[:, -1], pipelining.microbatches)
    return tuple(jnp.asarray(table, jnp.int32) for table in (plan.microbatch, plan.turn, start, stop))


def _mean(found: Array, plan: Schedule, pipelining: Pipelining) -> Array:
    """Takes what layers reported, `[ticks, stages, layers of a piece, ...]`, to its mean over microbatches.

    What idle stages reported does not count, not even if it is nan.
    """
    found = (found if jnp.issubdtype(found.dtype, jnp.floating) else found.astype(jnp.float32))[:, :, None]
    counts = plan.busy[:, :, None] & (plan.turn[:, :, None] == np.arange(pipelining.rounds))
    total = jnp.sum(jnp.where(_spread(jnp.asarray(counts), found), found, 0), axis=0)
    return _from_stages(total / pipelining.microbatches)
