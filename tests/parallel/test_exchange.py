# SPDX-License-Identifier: Apache-2.0
"""Rows reach the devices of their experts and come back, all of them, whatever the routing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from dovetail.ops import ReferenceGroupedMatmul
from dovetail.parallel import Mesh, exchange
from support.numeric import FLOAT32, assert_close, float64, normal

DEVICES, EXPERTS, ROWS, DIM = 8, 8, 10, 3  # ROWS: of each device.
MESHES = {2: Mesh(data=4, expert=2), 4: Mesh(data=2, expert=4), 8: Mesh(data=2, expert=4)}
AXES = {2: ("expert",), 4: ("expert",), 8: ("data", "expert")}  # The mesh axes over which experts are split.
FACTOR = 1.25
WEIGHT, X, COTANGENT = (
    normal(0, (EXPERTS, DIM, DIM)),
    normal(1, (DEVICES * ROWS, DIM)),
    normal(2, (DEVICES * ROWS, DIM)),
)
ROUTINGS = {
    "random": np.random.default_rng(0).integers(0, EXPERTS, DEVICES * ROWS),
    "even": np.arange(DEVICES * ROWS) % EXPERTS,
    "all to one": np.full(DEVICES * ROWS, 5),
    "none to some": np.random.default_rng(1).choice([0, 1, 6], DEVICES * ROWS),
    "one device alone is uneven": np.where(np.arange(DEVICES * ROWS) < ROWS, 0, np.arange(DEVICES * ROWS) % EXPERTS),
}


def local(axes, weight, x, experts):
    """Sorts the rows of this device, exchanges them, and returns what the experts made, and what it took."""
    weight = jax.lax.pcast(weight, tuple({"data", "expert"} - set(axes)), to="varying")
    order = jnp.argsort(experts)
    plan = exchange(jnp.bincount(experts, length=EXPERTS), len(x), axes, factor=FACTOR)
    multiply = ReferenceGroupedMatmul.Config().build()
    y = plan(lambda rows, sizes: jnp.tanh(multiply(rows, weight, sizes)), x[order])
    took = jnp.stack([plan.rounds + 0 * plan.sent_rows(), plan.sent_rows(), plan.padded_rows() + 0 * plan.sent_rows()])
    return y[jnp.argsort(order)], took[None]


def mapped(count):
    split = PartitionSpec(("data", "expert"))
    run = functools.partial(local, AXES[count])
    ins, outs = (PartitionSpec(AXES[count]), split, split), (split, split)
    return jax.shard_map(run, axis_names={"data", "expert"}, in_specs=ins, out_specs=outs)


@functools.cache
def compiled(count):
    def outcome(weight, x, cotangent, experts):
        y, pull, took = jax.vjp(lambda weight, x: mapped(count)(weight, x, experts), weight, x, has_aux=True)
        return y, pull(cotangent), took

    return jax.jit(outcome)


def definition(experts, weight, x, cotangent):
    y = np.tanh(np.stack([row @ weight[e] for row, e in zip(x, experts, strict=True)]))
    inner, dweight, dx = cotangent * (1 - y**2), np.zeros_like(weight), np.zeros_like(x)
    for row, e in enumerate(experts):
        dweight[e] += np.outer(x[row], inner[row])
        dx[row] = inner[row] @ weight[e].T
    return y, (dweight, dx)


@pytest.mark.parametrize("count", MESHES)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_an_exchange_is_the_local_computation_and_so_is_its_gradient(routing, count):
    experts = ROUTINGS[routing]
    with jax.set_mesh(MESHES[count].on()):
        *got, took = compiled(count)(WEIGHT, X, COTANGENT, experts)
    assert_close(tuple(got), definition(experts, *float64((WEIGHT, X, COTANGENT))), FLOAT32)
    # What it took, counted one row at a time.
    room = int(np.ceil(FACTOR * ROWS / count))
    leaving = np.zeros((DEVICES, count), int)  # From each device, to each of those it exchanges with.
    for row, e in enumerate(experts):
        leaving[row // ROWS, e // (EXPERTS // count)] += 1
    rounds = max(int(np.ceil(rows / room)) for rows in leaving.flat)
    sent = [sum(leaving[i]) - leaving[i, i % count] for i in range(DEVICES)]
    np.testing.assert_array_equal(took, [(rounds, rows, rounds * (count - 1) * room) for rows in sent])


def test_an_even_routing_takes_one_round_and_the_worst_as_many_as_the_devices():
    experts = {name: ROUTINGS[name] for name in ("even", "all to one")}
    with jax.set_mesh(MESHES[4].on()):
        rounds = {name: int(compiled(4)(WEIGHT, X, COTANGENT, e)[2][0, 0]) for name, e in experts.items()}
    assert rounds == {"even": 1, "all to one": 3}, "of 4 rows each: 10 rows"


def scans(jaxpr):
    """Yields every loop in a program."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            yield eqn
        for value in eqn.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from scans(inner)


def test_rounds_keep_nothing_for_the_backward_pass_however_many_there_are():
    with jax.set_mesh(MESHES[4].on()):
        program = jax.make_jaxpr(compiled(4))(WEIGHT, X, COTANGENT, ROUTINGS["random"])
    loops = list(scans(program.jaxpr))
    assert len(loops) == 2, "there and back"
    for loop in loops:
        assert len(loop.outvars) == loop.params["num_carry"], "nothing is stacked"
