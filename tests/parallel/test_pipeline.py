# SPDX-License-Identifier: Apache-2.0
"""A pipelined loop is the plain loop over each microbatch: outputs, gradients, what layers report. What it moves."""

import re
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, modify
from dovetail.module import Remat, call
from dovetail.nn import Block
from dovetail.parallel import Mesh, layout_of
from dovetail.parallel._pipeline import Pipelining, _to_stages, schedule
from support.compare import assert_same
from support.loops import Context, Counting, Repeat
from support.models import lm, random_params
from support.pipelines import Layer, stored
from support.programs import equations

ROWS, TIME, DIM = 16, 3, Layer.DIM


def layers(count, **fields):
    return Repeat.Config(layer=Layer.Config(), num_repeats=count).set(**fields).build()


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in ((ROWS, TIME, DIM), (ROWS, TIME)))


def run(model, params, x, shift, **kwargs):
    """Calls it, with what all layers are told: an array with rows as `x` has them, one without, and a number."""
    scale = jnp.asarray(np.random.default_rng(1).normal(size=(1, TIME)))
    return call(model, params, x, Context({"shift": shift, "scale": scale, "offset": 0.5}), **kwargs)


def outcome(run, params):
    """Outputs, what was collected, and the gradients of all of it that is a loss."""

    def loss(params, args):
        x, collected = run(params, *args)
        return jnp.sum(jnp.sin(x)) + sum(map(jnp.sum, collected.losses.values())), (x, collected)

    (_, aux), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, inputs())
    return aux, grads


def one_by_one(model, params, *args, microbatches, **kwargs):
    """Each microbatch on its own, with rows dealt out in turn; what they report is averaged."""
    dealt = [jnp.stack([arg[i::microbatches] for i in range(microbatches)]) for arg in args]
    x, collected = jax.vmap(lambda *args: run(model, params, *args, **kwargs))(*dealt)
    return jnp.swapaxes(x, 0, 1).reshape(args[0].shape), jax.tree.map(lambda x: jnp.mean(x, axis=0), collected)


@pytest.fixture
def wide():
    """Float64, in which the order of sums does not show."""
    with jax.enable_x64(True):
        yield


def on(mesh, function, model, params):
    layout = layout_of(mesh)
    with jax.set_mesh(mesh.on()):
        return jax.device_get(function(layout, stored(model, params, layout)))


MESHES = [
    (Mesh(pipeline=2, data=2), 4),
    (Mesh(pipeline=4, data=2, microbatches=8), 4),
    (Mesh(pipeline=8, microbatches=2), 8),
    (Mesh(pipeline=2, data=2, microbatches=4, rounds=2), 8),
    (Mesh(pipeline=4, data=2, microbatches=8, rounds=2), 8),
]


@pytest.mark.parametrize(
    "mesh, count", MESHES, ids=lambda x: f"{x.text()},{x.num_microbatches}x{x.rounds}" if isinstance(x, Mesh) else x
)
@pytest.mark.usefixtures("wide")
def test_a_pipeline_equals_the_loop_over_each_microbatch(mesh, count):
    model = layers(count)
    params = jax.tree.map(lambda x: x.astype(jnp.float64), random_params(model))
    got = on(mesh, lambda layout, p: outcome(partial(run, model, layout=layout), p), model, params)
    want = outcome(partial(one_by_one, model, microbatches=mesh.num_microbatches), params)
    assert_same(got, jax.device_get(want))
    assert got[0][1].summaries["layer[:].size"].shape == (count,)
    assert got[0][1].updates["layer.load"].shape == (count, DIM)


def published(model, params, x, shift, **kwargs):
    """What comes out, and what layers have published, with a row for each of the batch."""
    x, collected = run(model, params, x, shift, **kwargs)
    found = collected.published
    return {"x": x, "first": found["first"].value, "last": found["last"].value["mean"]}


@pytest.mark.parametrize("mesh, count", [MESHES[0], MESHES[2], MESHES[3]], ids=["GPipe", "GPipe of 8", "circular"])
@pytest.mark.parametrize("remat", [None, Remat()], ids=["kept", "remat"])
@pytest.mark.usefixtures("wide")
def test_what_layers_publish_goes_with_the_microbatch_from_stage_to_stage(mesh, count, remat):
    model = layers(count, layer=Layer.Config(publishes=True, remat=remat))
    params = jax.tree.map(lambda x: x.astype(jnp.float64), random_params(model))

    def outcome(layout, params):
        def loss(params, args):
            found = published(model, params, *args, layout=layout)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in found.values()), found

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, inputs())

    assert_same(on(mesh, outcome, model, params), jax.device_get(outcome(None, params)))


def test_what_layers_publish_is_not_moved_where_nobody_publishes():
    plain, told = (
        program(layers(8, layer=Layer.Config(publishes=publishes)), *inputs(), mesh=Mesh(pipeline=2, microbatches=8))
        for publishes in (False, True)
    )
    carried = [
        [eqn.params["num_carry"] for eqn, _ in equations(each) if eqn.primitive.name == "scan"]
        for each in (plain, told)
    ]
    assert carried[0][1] == 1, "x alone, in the loop over the layers of a stage"
    assert carried[1][1] == 1 + 2 + 2, "two values, and whether each is there"


def test_a_language_model_with_packed_rows_remat_and_a_tensor_axis_equals_itself_on_one_device():
    mesh = Mesh(pipeline=2, data=2, tensor=2, microbatches=4)
    remat = modify(Block.Config, lambda block: block.set(remat=Remat()))
    model = remat(lm(num_layers=4, vocab_size=16)).build()
    params = random_params(model)
    rng = np.random.default_rng(0)
    ids = jnp.asarray(rng.integers(0, 16, (8, 6)), jnp.int32)
    segments = jnp.asarray(np.sort(rng.integers(1, 4, (8, 6)), axis=1), jnp.int32)

    def loss(layout, params):
        weights = jnp.ones(ids.shape)
        batch = {"tokens": ids, "targets": jnp.roll(ids, -1, axis=1), "weights": weights, "segments": segments}
        found, _ = call(model, params, batch, method="loss", layout=layout)
        return found.sum / found.weight

    got = on(mesh, lambda layout, p: jax.jit(jax.value_and_grad(partial(loss, layout)))(p), model, params)
    assert_same(got, jax.device_get(jax.jit(jax.value_and_grad(partial(loss, None)))(params)))


def test_whole_numbers_cannot_go_from_stage_to_stage():
    model = Repeat.Config(layer=Counting.Config(), num_repeats=4).build(path="stack")
    layout = layout_of(Mesh(pipeline=2))
    with jax.set_mesh(Mesh(pipeline=2).on()), pytest.raises(ConfigError) as e:
        call(model, {"layer": {}}, jnp.ones((ROWS, TIME, DIM)), layout=layout)
    assert str(e.value).startswith(
        "stack: what goes from stage to stage of a pipeline must be of a floating-point type; found int32[16], "
        "[1]['count'].value.\n  What layers publish goes along: let them publish floats, "
    )


def collectives(program):
    """Counts the collectives of a compiled program, by kind, whether they are in a loop, and shape."""
    found = re.findall(r"= (\S+?)(?:\{\S*)? (all-\w+|collective-\w+|reduce-scatter)\(.*op_name=\"(.*?)\"", program)
    return Counter((kind, "while/body" in where, shape) for shape, kind, where in found)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_tick_moves_one_microbatch_to_the_next_stage_and_its_gradient_back_and_nothing_else(rounds):
    mesh = Mesh(pipeline=4, rounds=rounds)
    model = layers(8)

    def program(layout, params):
        def loss(params, x, shift):
            return jnp.sum(jnp.sin(run(model, params, x, shift, layout=layout)[0]))

        return jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, *inputs()).compile().as_text()

    moved = collectives(on(mesh, program, model, random_params(model)))
    in_ticks = {key: count for key, count in moved.items() if key[1]}
    assert in_ticks == {("collective-permute", True, f"f32[1,{ROWS // 4},{TIME},{DIM}]"): 2}
    assert ("all-reduce", False, f"f32[4,{ROWS // 4},{TIME},{DIM}]") in moved, "the results go to all stages"
    strided = any(f",{DIM},{DIM}]" in shape for _, _, shape in moved)
    assert strided == (rounds > 1), "parameters move, once, only where pieces lie strided"


@pytest.mark.parametrize("stages, microbatches, rounds", [(2, 2, 1), (4, 16, 1), (8, 3, 1), (4, 8, 2), (2, 6, 3)])
def test_stages_are_idle_for_the_share_of_ticks_that_the_formula_says(stages, microbatches, rounds):
    plan = schedule(Pipelining(stages, microbatches, rounds, "forward_first", "pipeline"))
    assert 1 - plan.busy.mean() == pytest.approx((stages - 1) / (microbatches * rounds + stages - 1))


@pytest.mark.parametrize("stages, microbatches, rounds", [(4, 4, 1), (4, 8, 2), (4, 6, 2), (4, 2, 3)])
def test_each_microbatch_passes_all_pieces_in_order_one_tick_after_the_other(stages, microbatches, rounds):
    plan = schedule(Pipelining(stages, microbatches, rounds, "forward_first", "pipeline"))
    for microbatch in range(microbatches):
        ticks, places = np.nonzero(plan.busy & (plan.microbatch == microbatch))
        np.testing.assert_array_equal(ticks, ticks[0] + np.arange(stages * rounds))
        np.testing.assert_array_equal(plan.turn[ticks, places] * stages + places, np.arange(stages * rounds))


def program(model, *args, mesh, **kwargs):
    with jax.set_mesh(mesh.on()):
        return jax.make_jaxpr(partial(run, model, layout=layout_of(mesh), **kwargs))(random_params(model), *args)


def scans(jaxpr):
    return [eqn.params["length"] for eqn, _ in equations(jaxpr) if eqn.primitive.name == "scan"]


def test_the_program_has_as_many_ticks_as_the_schedule_and_a_loop_over_the_layers_of_a_stage():
    assert scans(program(layers(8), *inputs(), mesh=Mesh(pipeline=2, microbatches=8))) == [8 + 2 - 1, 4]
    assert scans(program(layers(8), *inputs(), mesh=Mesh(pipeline=2, microbatches=8, rounds=2))) == [17, 2]
    unrolled = layers(8, loop="unroll")
    assert scans(program(unrolled, *inputs(), mesh=Mesh(pipeline=2, microbatches=8))) == [9]


def test_a_loop_that_cannot_be_pipelined_runs_as_it_is():
    plain, mesh = [8], Mesh(pipeline=2, microbatches=4)
    assert scans(program(layers(8), *inputs(), mesh=mesh, state={})) == plain, "decode state stays in place"
    assert scans(program(layers(8), *(x[:6] for x in inputs()), mesh=mesh)) == plain, "6 rows, 4 microbatches"
    assert scans(program(layers(7), *inputs(), mesh=mesh)) == [7], "7 layers, 2 stages"
    assert scans(program(layers(6), *inputs(), mesh=mesh.set(rounds=2))) == [6], "6 layers, 4 pieces"


def test_a_loop_inside_of_a_pipeline_stays_a_loop():
    inner = Repeat.Config(layer=Layer.Config(), num_repeats=4)
    model = Repeat.Config(layer=inner, num_repeats=2).build()
    assert scans(program(model, *inputs(), mesh=Mesh(pipeline=2))) == [3, 1, 4]


def test_random_numbers_differ_by_layer_and_microbatch_and_follow_from_the_key():
    model, mesh = layers(4), Mesh(pipeline=2, microbatches=4)
    x = jnp.ones((ROWS, TIME, DIM)).at[:, :, 0].set(2.0)
    args = (x, jnp.zeros((ROWS, TIME)))
    params = jax.tree.map(jnp.zeros_like, random_params(model))

    def three(layout, params):
        noisy = partial(run, model, params, *args, train=True, layout=layout)
        return [jax.jit(lambda key: noisy(rng=key))(jax.random.key(seed)) for seed in (0, 0, 1)]

    (first, _), (again, _), (other, _) = on(mesh, three, model, params)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert len({row.tobytes() for row in first}) == ROWS, "no two rows, so no two microbatches, are alike"
    key = jax.random.fold_in(jax.random.key(0), 3)
    alone, _ = run(model, params, *(arg[3::4] for arg in args), train=True, rng=key)
    assert_same(first[3::4], jax.device_get(alone))


@pytest.mark.parametrize("stages, rounds", [(4, 2), (2, 4), (4, 3), (6, 4), (4, 6)])
def test_pieces_of_layers_go_to_their_stages_whatever_the_number_of_rounds(stages, rounds):
    pipelining = Pipelining(stages, stages, rounds, "forward_first", "pipeline")
    with jax.set_mesh(Mesh(pipeline=stages).on()):
        pieces = jax.device_get(jax.jit(lambda x: _to_stages(x, pipelining))(jnp.arange(stages * rounds * 2)))
    for stage, turn in np.ndindex(stages, rounds):
        first = 2 * (turn * stages + stage)
        np.testing.assert_array_equal(pieces[stage, turn], [first, first + 1])
