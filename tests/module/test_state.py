# SPDX-License-Identifier: Apache-2.0
"""Declared state: what a call needs is listed before the first, and kept by call; state of a run is the module's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED
from dovetail.module import (
    Module,
    ModuleError,
    Remat,
    call,
    init,
    init_run_state,
    make_state,
    merged,
    next_run_state,
    run_specs,
    specs,
    state_specs,
)
from dovetail.parallel import Mesh, layout_of
from support.compare import assert_same
from support.loops import Repeat, Sequence
from support.models import random_params
from support.transformer import Attention, decoder

DIM = 4
X = jax.random.normal(jax.random.key(0), (2, 6, DIM))


class Sum(Module):
    """Adds up what it has seen, from a start of its own."""

    class Config(Module.Config):
        dim: int = DIM
        start: float = 0.0

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.state("total", ("batch", cfg.dim), axes=("batch", "embed"), init=cfg.start)
        self.state("calls", (), axes=(), dtype=jnp.int32)

    def forward(self, x, context=None):
        if not self.stateful:
            return x
        self.update("total", self.total.astype(x.dtype) + jnp.sum(x, axis=1))
        self.update("calls", self.calls + 1)
        return x + self.total[:, None]


class Twice(Module):
    """Calls the same layer twice, one after the other."""

    class Config(Module.Config):
        layer: Module.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.layer = self.child("layer", cfg.layer)

    def forward(self, x, context=None):
        return self.layer(self.layer(x))


SIZES = {"batch": 2, "capacity": 6}


def described(found):
    return {path: (spec.shape, jnp.dtype(spec.dtype).name, spec.nbytes, spec.spec.axes) for path, spec in found.items()}


# What is listed.


def test_specs_list_exactly_what_a_call_needs_stacked_by_layers():
    model = Sequence.Config(layers=[Sum.Config(), Repeat.Config(layer=Sum.Config(), num_repeats=3)]).build(path="stack")
    found = state_specs(model, init(model, jax.random.key(0)), X, sizes=SIZES)
    assert described(found) == {
        "stack.layers[0].total": ((2, 4), "float32", 32, ("batch", "embed")),
        "stack.layers[0].calls": ((), "int32", 4, ()),
        "stack.layers[1].layer.total": ((3, 2, 4), "float32", 96, ("layers", "batch", "embed")),
        "stack.layers[1].layer.calls": ((3,), "int32", 12, ("layers",)),
    }
    assert [spec.dim("batch") for spec in found.values()] == [0, None, 1, None], "where a server inserts rows"
    assert jax.tree.map(jnp.shape, make_state(found)) == {path: spec.shape for path, spec in found.items()}


def test_specs_of_loops_in_loops_have_a_dimension_for_each():
    inner = Repeat.Config(layer=Sum.Config(start=2.0), num_repeats=3)
    model = Repeat.Config(layer=inner, num_repeats=2).build()
    found = state_specs(model, {"layer": {"layer": {}}}, X, sizes=SIZES)
    assert found["layer.layer.total"].shape == (2, 3, 2, 4)
    np.testing.assert_array_equal(make_state(found)["layer.layer.total"], 2.0)


def test_nothing_is_computed_and_shapes_alone_are_enough():
    model = decoder(num_layers=2).build()
    params = jax.eval_shape(lambda: init(model, jax.random.key(0)))
    ids = jax.ShapeDtypeStruct((2, 6), jnp.int32)
    found = state_specs(model, params, ids, sizes=SIZES)
    assert described(found) == {
        "stack.layer.attention.length": ((2,), "int32", 8, ("layers",)),
        "stack.layer.attention.keys": ((2, 2, 6, 2, 4), "float32", 768, ("layers", "batch", None, "heads", None)),
        "stack.layer.attention.values": ((2, 2, 6, 2, 4), "float32", 768, ("layers", "batch", None, "heads", None)),
    }


@pytest.mark.parametrize("loop", ["scan", "unroll"])
@pytest.mark.parametrize("remat", [None, Remat()], ids=["kept", "remat"])
def test_loop_and_remat_do_not_change_the_list(loop, remat):
    layer = Attention.Config(dim=DIM, remat=remat)
    model = Repeat.Config(layer=layer, num_repeats=2, loop=loop).build()
    found = described(state_specs(model, random_params(model), X, sizes=SIZES))
    assert found["layer.keys"] == ((2, 2, 6, 2, 2), "float32", 384, ("layers", "batch", None, "heads", None))
    assert set(found) == {"layer.length", "layer.keys", "layer.values"}


def test_state_without_a_dtype_has_that_of_the_computation():
    model = Sum.Config().build()
    found = state_specs(model, {}, X.astype(jnp.bfloat16), sizes=SIZES, dtype=jnp.bfloat16)
    assert (found["total"].dtype, found["calls"].dtype) == (jnp.bfloat16, jnp.int32)


def test_state_is_made_where_its_axes_lie_on_the_mesh():
    mesh = Mesh(data=2, tensor=2)
    layout, model = layout_of(mesh), Attention.Config(dim=DIM).build()
    found = state_specs(model, random_params(model), X, sizes=SIZES)
    with jax.set_mesh(mesh.on()):
        state = jax.jit(lambda: make_state(found, layout))()
    assert state["keys"].sharding.spec == jax.sharding.PartitionSpec("data", None, "tensor")


def test_a_start_may_be_a_function_of_the_shape():
    class Numbered(Module):
        def __init__(self, cfg, **kwargs):
            super().__init__(cfg, **kwargs)
            self.state("row", ("batch",), axes=("batch",), dtype=jnp.int32, init=lambda shape: jnp.arange(shape[0]))

        def forward(self, x, context=None):
            return x + self.row[:, None, None].astype(x.dtype)

    model = Repeat.Config(layer=Numbered.Config(), num_repeats=2).build()
    state = make_state(state_specs(model, {"layer": {}}, X, sizes={"batch": 2}))
    np.testing.assert_array_equal(state["layer.row"], [[0, 1], [0, 1]])


# What a call does with it.


def test_a_layer_called_twice_has_state_of_its_own_for_each_call():
    model = Twice.Config(layer=Sum.Config()).build()
    found = state_specs(model, {}, X, sizes=SIZES)
    assert set(found) == {"layer.total", "layer.calls", "layer#2.total", "layer#2.calls"}
    given = make_state(found)
    _, collected = call(model, {}, X, state=given)
    assert collected.state is not None
    assert [int(collected.state[f"{path}.calls"]) for path in ("layer", "layer#2")] == [1, 1]
    assert not np.any(given["layer.total"]), "the state that was passed in is not changed"


ATTENTION = Attention.Config(dim=DIM)


@pytest.mark.parametrize(
    "cfg",
    [
        Twice.Config(layer=ATTENTION),
        Repeat.Config(layer=Twice.Config(layer=ATTENTION), num_repeats=2),
        Twice.Config(layer=Repeat.Config(layer=ATTENTION, num_repeats=2)),
    ],
    ids=["alone", "in a loop", "a loop"],
)
def test_decoding_a_layer_that_is_called_twice_is_the_whole_forward(cfg):
    model = cfg.build()
    params = random_params(model)
    step = jax.jit(lambda x, state: call(model, params, x, state=state))
    state, outs = make_state(state_specs(model, params, X[:, :4], sizes=SIZES)), []
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        out, collected = step(X[:, start:stop], state)
        outs, state = [*outs, out], collected.state
    assert_same(jnp.concatenate(outs, axis=1), call(model, params, X)[0])


def test_state_that_a_call_does_not_touch_passes_through():
    model = Twice.Config(layer=Sum.Config()).build()
    state = {**make_state(state_specs(model, {}, X, sizes=SIZES)), "elsewhere": jnp.arange(3)}
    after = call(model, {}, X, state=state)[1].state or {}
    np.testing.assert_array_equal(after["elsewhere"], jnp.arange(3))


@pytest.mark.parametrize(
    "change, text",
    [
        (
            lambda state: {path: leaf for path, leaf in state.items() if path != "layer#2.total"},
            "layer#2.total: not among the state that call(...) was given. Make it for this module, method and number of"
            "\n  calls: make_state(state_specs(module, params, *inputs, method=..., sizes={...})).",
        ),
        (
            lambda state: {**state, "layer.total": state["layer.total"].astype(jnp.bfloat16)},
            "layer.total: the new state is float32[2, 4], the declared one bfloat16[2, 4].",
        ),
        (
            lambda state: {**state, "layer.total": state["layer.total"][:1]},
            "layer.total: the new state is float32[2, 4], the declared one float32[1, 4].",
        ),
        (
            lambda state: {**state, "layer.total": state["layer.total"][:, :3]},
            "layer.total: the state is float32[2, 3], the module declares any float['batch', 4].",
        ),
    ],
    ids=["missing", "dtype", "rows", "shape"],
)
def test_state_that_is_missing_or_of_another_kind_is_named(change, text):
    model = Twice.Config(layer=Sum.Config()).build()
    state = change(make_state(state_specs(model, {}, X, sizes=SIZES)))
    with pytest.raises(ModuleError) as e:
        call(model, {}, X, state=state)
    assert str(e.value) == text


def test_a_size_that_is_not_given_is_named():
    with pytest.raises(ModuleError) as e:
        state_specs(Sum.Config().build(path="sum"), {}, X, sizes={"capacity": 3})
    assert str(e.value) == (
        "sum.total has the size 'batch'; the sizes given are {'capacity': 3}. Pass it: state_specs(..., sizes={...})."
    )


# State of a run.


class Centred(Module):
    """Subtracts a running mean of what it sees in training, times a weight that is learned."""

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (DIM, DIM), axes=(None, None))
        self.state("mean", (DIM,), axes=("embed",), lifetime="run", init=1.0, update_rule=_towards)
        self.state("last", (DIM,), axes=("embed",), lifetime="run")

    def forward(self, x, context=None):
        if self.training:
            self.update("mean", jnp.mean(x, axis=(0, 1)))
            self.update("last", jnp.mean(x, axis=(0, 1)))
        return (x - self.mean.astype(x.dtype)) @ self.weight


def _towards(old, new):
    return 0.9 * old + 0.1 * new


def test_run_state_is_a_tree_by_module_with_shapes_and_first_values():
    model = Repeat.Config(layer=Centred.Config(), num_repeats=2).build()
    spec = run_specs(model)["layer"]["mean"]
    assert (spec.shape, spec.axes) == ((2, DIM), ("layers", "embed"))
    assert list(specs(model)["layer"]) == ["weight"], "it is no parameter"
    first = init_run_state(model)
    np.testing.assert_array_equal(first["layer"]["mean"], np.ones((2, DIM)))
    np.testing.assert_array_equal(first["layer"]["last"], np.zeros((2, DIM)))
    assert run_specs(decoder().build()) == {}


def test_a_step_reads_the_old_value_and_ends_with_what_the_rule_makes():
    model = Centred.Config().build()
    params, run_state = random_params(model), {"mean": jnp.arange(4.0), "last": jnp.zeros(4)}
    out, collected = call(model, merged(params, run_state), X, train=True)
    assert_same(out, (X - jnp.arange(4.0)) @ params["weight"])
    seen = jnp.mean(X, axis=(0, 1))
    after = next_run_state(model, run_state, collected.updates)
    assert_same(after, {"mean": 0.9 * jnp.arange(4.0) + 0.1 * seen, "last": seen})
    quiet = call(model, merged(params, run_state), X)[1].updates
    assert_same(next_run_state(model, run_state, quiet), run_state)


def test_no_gradient_reaches_it_and_none_leaves_by_what_is_handed_in():
    model = Repeat.Config(layer=Centred.Config(), num_repeats=2).build()
    values = merged(random_params(model), init_run_state(model))

    def loss(values, x):
        out, collected = call(model, values, x, train=True)
        return jnp.sum(jnp.sin(out)), sum(map(jnp.sum, collected.updates.values()))

    grads = jax.grad(lambda *args: loss(*args)[0])(values, X)
    assert not np.any(grads["layer"]["mean"])
    assert np.all(np.any(grads["layer"]["weight"], axis=(1, 2)))
    assert not np.any(jax.grad(lambda x: loss(values, x)[1])(X))


def test_what_a_module_that_is_called_twice_hands_in_is_averaged():
    model = Twice.Config(layer=Centred.Config()).build()
    values = merged(random_params(model), init_run_state(model))
    between = call(Centred.Config().build(), values["layer"], X)[0]
    _, collected = call(model, values, X, train=True)
    assert list(collected.updates) == ["layer.mean", "layer.last"], "by module, not by call"
    want = (jnp.mean(X, axis=(0, 1)) + jnp.mean(between, axis=(0, 1))) / 2
    assert_same(collected.updates["layer.last"], want)


@pytest.mark.parametrize("remat", [None, Remat()], ids=["kept", "remat"])
def test_in_a_scan_it_is_that_of_each_layer_as_in_a_loop(remat):
    def outcome(loop):
        layer = Twice.Config(layer=Centred.Config(), remat=remat)
        model = Repeat.Config(layer=layer, num_repeats=3, loop=loop).build()
        run_state = init_run_state(model)
        values = merged(random_params(model), run_state)
        run = jax.jit(lambda values: call(model, values, X, train=True))
        out, collected = run(values)
        return out, collected.updates, next_run_state(model, run_state, collected.updates)

    scanned = outcome("scan")
    assert_same(scanned, outcome("unroll"))
    assert scanned[1]["layer.layer.mean"].shape == (3, DIM)
    assert len(np.unique(scanned[2]["layer"]["layer"]["mean"])) == 3 * DIM, "each layer has seen something else"


def test_in_a_transformation_of_ones_own_it_is_averaged_over_the_steps():
    class Steps(Module):
        class Config(Module.Config):
            cell: Module.Config = Centred.Config()

        def __init__(self, cfg, **kwargs):
            super().__init__(cfg, **kwargs)
            self.cell = self.child("cell", cfg.cell)

        def forward(self, xs):
            cell = self.lift(self.cell)
            out, collected = jax.lax.scan(lambda _, x: (None, cell(cell.params, None, None, x)), None, xs)[1]
            self.bring(collected, stacked=True)
            return out

    model = Steps.Config().build()
    values = merged(random_params(model), init_run_state(model))
    _, collected = call(model, values, jnp.stack([X, 3 * X]), train=True)
    assert_same(collected.updates["cell.last"], 2 * jnp.mean(X, axis=(0, 1)))


def test_a_call_without_it_says_what_to_pass():
    model = Centred.Config().build(path="norm")
    with pytest.raises(ModuleError) as e:
        call(model, random_params(model), X)
    assert str(e.value) == (
        "norm.mean: state of the run, which call(...) was not given.\n"
        "  Pass merged(params, run_state), where run_state is that of the run, or init_run_state(module)."
    )


def test_it_keeps_its_dtype_in_a_model_of_another():
    model = Centred.Config().build()
    values = merged(random_params(model), init_run_state(model))
    _, collected = call(model, values, X.astype(jnp.bfloat16), train=True, dtype=jnp.bfloat16)
    after = next_run_state(model, init_run_state(model), collected.updates)
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("mesh", [Mesh(data=4), Mesh(fsdp=2, tensor=2)], ids=lambda mesh: mesh.text())
def test_on_a_mesh_what_is_handed_in_is_that_of_all_rows(mesh):
    model = Centred.Config().build()
    values, x = merged(random_params(model), init_run_state(model)), jnp.concatenate([X, 2 * X])
    run = jax.jit(lambda values, x: call(model, values, x, train=True, layout=layout_of(mesh))[1].updates)
    with jax.set_mesh(mesh.on()):
        got = jax.device_get(run(values, x))
    assert_same(got, jax.device_get(call(model, values, x, train=True)[1].updates))
