# SPDX-License-Identifier: Apache-2.0
"""The pipeline schedule in which a stage works backwards on a microbatch as soon as it can: few are in memory at once.

In each tick, every stage runs one microbatch forwards and an earlier one backwards, computing again what happens
inside the stage. It keeps what it was given for at most `2 * stages - 1` microbatches, however many there are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from ._pipeline import SIDE_BY_SIDE, stage_axes
from ._stage_program import Loss, StageProgram, is_float

Arrays = list[Array]


class _State(NamedTuple):
    """What goes from tick to tick. `[stages, ...]` lies on the mesh; `[ring, stages, ...]` has the last few ticks."""

    x: Arrays  # [stages, ...]: what comes in.
    taken: Arrays  # [ring, stages, ...]: what came in, tick by tick.
    reported: Arrays  # [ring, stages, ...]: what the layers of each stage reported.
    x_gradient: Arrays  # [stages, ...]: of what went out; comes in from the next stage.
    report_gradients: Arrays  # [ring, stages, ...]: of what layers reported of the microbatch that left in that tick.
    piece_gradients: Arrays  # [stages, ...]: sums.
    gradients: dict[int, Array]  # Sums, of the parameters that all stages, or what is before or after them, need.


def one_forward_one_backward(loss: Loss, params: Any, zeros: Any, microbatches: Any) -> tuple[Any, Any]:
    """Returns the sum of the gradients of all microbatches, added to `zeros`, and what the loss reports of each.

    `stages - 1` ticks run forwards only, then one for each microbatch does both, then `stages - 1` run backwards only.
    Raises `ConfigError` unless the loss has exactly one loop over layers that can be pipelined.
    """
    leaves = jax.tree.leaves(microbatches)
    inputs = [*leaves, jnp.arange(leaves[0].shape[0], dtype=jnp.int32)]
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), microbatches)
    cut = StageProgram(loss, params, one, jax.ShapeDtypeStruct((), jnp.int32))
    run = _Schedule(cut, jax.tree.leaves(params), jax.tree.leaves(zeros), inputs)
    state, stages, count = run.start(), run.stages, len(inputs[-1])

    def warm_up(state: _State, tick: Array) -> tuple[_State, None]:
        return run.forward(state, tick)[0], None

    def steady(state: _State, tick: Array) -> tuple[_State, Arrays]:
        state, out = run.forward(state, tick)
        state, x_gradient, results = run.head(state, tick, out)
        return run.backward(state, tick, x_gradient), results

    def drain(state: _State, tick: Array) -> tuple[_State, None]:
        return run.backward(state, tick, None), None

    state, _ = jax.lax.scan(warm_up, state, jnp.arange(stages - 1))
    state, results = jax.lax.scan(steady, state, stages - 1 + jnp.arange(count))
    state, _ = jax.lax.scan(drain, state, stages - 1 + count + jnp.arange(stages - 1))
    _, stats = jax.tree.unflatten(cut.out_tree, results)
    return jax.tree.unflatten(jax.tree.structure(params), run.sums(state)), stats


class _Schedule:
    """The work of a tick. What a stage makes before its first microbatch, and after its last, is not used."""

    def __init__(self, cut: StageProgram, params: Arrays, zeros: Arrays, inputs: Arrays):
        pipelining = cut.layout.pipelining
        assert pipelining is not None
        self.stages, self._axis = pipelining.stages, pipelining.axis
        self._ring = 2 * self.stages - 1
        self._cut, self._params, self._zeros, self._inputs = cut, params, zeros, inputs
        self._place, self._count = jnp.arange(self.stages), len(inputs[-1])
        self._pieces = self._on_stages(cut.pieces(self._some(cut.pieces.needs), self._microbatch(jnp.int32(0))))

    def start(self) -> _State:
        """Returns the state before the first tick."""
        cut = self._cut
        x = self._lay([jnp.broadcast_to(leaf, (self.stages, *leaf.shape[1:])) for leaf in self._first(jnp.int32(0))])
        _, reported = jax.eval_shape(self._stages, x, self._place)
        return _State(
            x=x,
            taken=self._ring_of(x),
            reported=self._ring_of(reported),
            x_gradient=[jnp.zeros_like(leaf) for leaf in x],
            report_gradients=self._ring_of(_floats(reported)),
            piece_gradients=self._on_stages(self._wide_pieces(self._some(cut.pieces.needs, self._zeros))),
            gradients={i: self._zeros[i] for i in {*cut.before.needs, *cut.stage_needs, *cut.after.needs}},
        )

    def forward(self, state: _State, tick: Array) -> tuple[_State, Arrays]:
        """Runs every stage on its next microbatch; returns what they made."""
        x = self._lay(_where(self._place == 0, self._first(tick), state.x))
        out, reported = self._stages(x, tick - self._place)
        state = state._replace(
            x=self._lay([jnp.roll(leaf, 1, axis=0) for leaf in out]),
            taken=self._put(state.taken, x, tick),
            reported=self._put(state.reported, reported, tick),
        )
        return state, out

    def head(self, state: _State, tick: Array, out: Arrays) -> tuple[_State, Arrays, Arrays]:
        """Runs what comes after the loop on what the last stage made, forwards and backwards."""
        number = tick - (self.stages - 1)
        reported = self._at(state.reported, number + self._place)
        after, inputs = self._cut.after, self._microbatch(number)

        def loss(params: Arrays, x: Arrays, floats: Arrays) -> tuple[Array, Arrays]:
            results = after(params, inputs, [*x, *_merged(reported, floats)])
            return results[0], results

        given = (self._some(after.needs), self._only(self.stages - 1, out), _floats(reported))
        (params, x, reported), results = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*given)
        state = state._replace(report_gradients=self._put(state.report_gradients, reported, tick))
        return self._add(state, after.needs, params), x, results

    def backward(self, state: _State, tick: Array, x_gradient: Arrays | None) -> _State:
        """Runs every stage backwards on the microbatch whose gradient has arrived, and what comes before the first."""
        number = tick - 2 * (self.stages - 1) + self._place
        busy = (number >= 0) & (number < self._count)
        x = self._at(state.taken, number + self._place)
        reported = self._at(state.report_gradients, number + self.stages - 1)
        arrived = state.x_gradient
        if x_gradient is not None:
            arrived = _where(self._place == self.stages - 1, [leaf[None] for leaf in x_gradient], arrived)
        pull: Any = jax.vmap(self._pull, axis_name=SIDE_BY_SIDE, spmd_axis_name=self._axis)
        pulled = pull(self._pieces, x, number, self._lay(arrived), reported)
        shared, pieces, x = (_where(busy, part, None) for part in pulled)
        needs = self._cut.stage_needs
        wide = [jnp.sum(leaf, axis=0, dtype=self._zeros[i].dtype) for i, leaf in zip(needs, shared, strict=True)]
        state = self._add(state, needs, wide)
        pieces = [total + leaf.astype(total.dtype) for total, leaf in zip(state.piece_gradients, pieces, strict=True)]
        before = self._cut.before
        _, pull_before = jax.vjp(lambda params: before(params, self._microbatch(number[0])), self._some(before.needs))
        state = self._add(state, before.needs, *pull_before(self._only(0, x)))
        arriving = self._lay([jnp.roll(leaf, -1, axis=0) for leaf in x])
        return state._replace(x_gradient=arriving, piece_gradients=pieces)

    def sums(self, state: _State) -> Arrays:
        """Returns the gradients of all parameters after the last tick."""
        needs = self._cut.pieces.needs
        _, pull = jax.vjp(self._wide_pieces, self._some(needs, self._zeros))
        of_pieces = dict(zip(needs, *pull(state.piece_gradients), strict=True))
        return [state.gradients.get(i, 0) + of_pieces.get(i, zero) for i, zero in enumerate(self._zeros)]

    def _first(self, number: Array) -> Arrays:
        """Returns what the first stage starts from, with a dimension for the stages."""
        before = self._cut.before
        return [leaf[None] for leaf in before(self._some(before.needs), self._microbatch(number))]

    def _stages(self, x: Arrays, number: Array) -> tuple[Arrays, Arrays]:
        shared = self._some(self._cut.stage_needs)

        def stage(piece: Arrays, x: Arrays, number: Array) -> tuple[Arrays, Arrays]:
            return self._cut.stage(shared, self._microbatch(number), piece, x)

        run: Any = jax.vmap(stage, axis_name=SIDE_BY_SIDE, spmd_axis_name=self._axis)
        return run(self._pieces, x, number)

    def _pull(self, piece: Arrays, x: Arrays, number: Array, out: Arrays, reported: Arrays) -> tuple[Arrays, ...]:
        """Returns the gradients of a stage, by parameters that all stages share, its piece, and what it was given."""
        inputs = self._microbatch(number)

        def stage(shared: Arrays, floats: Arrays, x: Arrays) -> tuple[Arrays, Arrays]:
            out, reported = self._cut.stage(shared, inputs, _merged(piece, floats), x)
            return out, _floats(reported)

        _, pull = jax.vjp(stage, self._some(self._cut.stage_needs), _floats(piece), x)
        return pull((out, reported))

    def _wide_pieces(self, params: Arrays) -> Arrays:
        return _floats(self._cut.pieces(params, self._microbatch(jnp.int32(0))))

    def _microbatch(self, number: Array) -> Arrays:
        """Returns a microbatch; a real one also for stages that are idle."""
        return [leaf[jnp.clip(number, 0, self._count - 1)] for leaf in self._inputs]

    def _some(self, needs: Sequence[int], params: Arrays | None = None) -> Arrays:
        return [(self._params if params is None else params)[i] for i in needs]

    def _add(self, state: _State, needs: Sequence[int], gradients: Arrays) -> _State:
        sums = dict(state.gradients)
        for i, gradient in zip(needs, gradients, strict=True):
            sums[i] = sums[i] + gradient.astype(sums[i].dtype)
        return state._replace(gradients=sums)

    def _lay(self, x: Arrays) -> Arrays:
        return [self._cut.layout.constrain(leaf, stage_axes(leaf.ndim)) for leaf in x]

    def _on_stages(self, pieces: Arrays) -> Arrays:
        free = PartitionSpec.UNCONSTRAINED
        return [jax.lax.with_sharding_constraint(x, PartitionSpec(self._axis, *[free] * (x.ndim - 1))) for x in pieces]

    def _only(self, stage: int, x: Arrays) -> Arrays:
        """Returns what one stage has, on all of them."""
        return [jnp.sum(leaf, axis=0, dtype=leaf.dtype) for leaf in _where(self._place == stage, x, None)]

    def _ring_of(self, x: Arrays) -> Arrays:
        return [jnp.zeros((self._ring, *leaf.shape), leaf.dtype) for leaf in x]

    def _put(self, ring: Arrays, x: Arrays, tick: Array) -> Arrays:
        update = jax.lax.dynamic_update_index_in_dim
        return [update(leaf, new, tick % self._ring, 0) for leaf, new in zip(ring, x, strict=True)]

    def _at(self, ring: Arrays, tick: Array) -> Arrays:
        """Returns what each stage put into the ring in a tick of its own."""
        return [jax.vmap(lambda leaf, i: leaf[i], in_axes=(1, 0))(leaf, tick % self._ring) for leaf in ring]


def _floats(x: Arrays) -> Arrays:
    return [leaf for leaf in x if is_float(leaf)]


def _merged(x: Arrays, floats: Arrays) -> Arrays:
    """Returns `x` with other values in place of its floating-point ones."""
    values = iter(floats)
    return [next(values) if is_float(leaf) else leaf for leaf in x]


def _where(stages: Array, x: Arrays, otherwise: Arrays | None) -> Arrays:
    """Returns `x` for some of the stages, and something else, by default 0, for the others."""

    def one(x: Array, other: Array | int) -> Array:
        return jnp.where(stages.reshape(-1, *[1] * (x.ndim - 1)), x, other)

    return [one(leaf, other) for leaf, other in zip(x, otherwise or [0] * len(x), strict=True)]
