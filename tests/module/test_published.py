# SPDX-License-Identifier: Apache-2.0
"""Publications: what a layer publishes, all later ones see, in a scan as in a Python loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import modify
from dovetail.module import Module, ModuleError, Published, Remat, call, make_state, state_specs
from dovetail.parallel import Mesh, layout_of
from support.compare import assert_same
from support.loops import Context, Repeat, Sequence
from support.models import random_params

DIM, COUNT = 4, 3
X = jax.random.normal(jax.random.key(0), (2, 5, DIM))


class Tells(Module):
    """Mixes its input with what the first layer, and the one before, have published, and publishes its own."""

    class Config(Module.Config):
        first: str = "first"
        quiet: bool = False  # It reads, and publishes nothing.

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (DIM, DIM), axes=(None, None))

    def forward(self, x, context):
        value = jnp.tanh(x @ self.weight)
        first = context.get(self.cfg.first, value)
        before = context.get("last", {"sum": jnp.zeros(x.shape[:1]), "value": value})
        if not self.cfg.quiet:
            self.publish(self.cfg.first, value, keep="first")
            self.publish("last", {"sum": jnp.sum(value, axis=(1, 2)), "value": value})
        return x + first + 0.1 * before["value"] + before["sum"][:, None, None]


def by_hand(params, x, quiet=()):
    """The same layers in plain JAX, and all that is published at their end."""
    first = before = None
    for i, weight in enumerate(params):
        value = jnp.tanh(x @ weight)
        a = value if first is None else first
        b, total = (value, jnp.zeros(2)) if before is None else (before, jnp.sum(before, axis=(1, 2)))
        if i not in quiet:
            first, before = value if first is None else first, value
        x = x + a + 0.1 * b + total[:, None, None]
    return x, first, before


def told(collected):
    found = collected.published
    return found["first"].value, found["last"].value["value"]


class Top(Module):
    """Runs layers, then one more that is told what they have published."""

    class Config(Module.Config):
        stack: Module.Config = Repeat.Config(layer=Tells.Config(), num_repeats=COUNT)
        more: Module.Config = Tells.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.stack = self.child("stack", cfg.stack)
        self.more = self.child("more", cfg.more)

    def forward(self, x):
        context = Context()
        x = self.stack(x, context)
        return self.more(x, context.later(self.published))


WEIGHTS = jax.random.normal(jax.random.key(1), (COUNT + 1, DIM, DIM)) / 2
SCANNED = {"stack": {"layer": {"weight": WEIGHTS[:COUNT]}}, "more": {"weight": WEIGHTS[COUNT]}}
IN_A_ROW = {
    "stack": {f"layers[{i}]": {"weight": WEIGHTS[i]} for i in range(COUNT)},
    "more": {"weight": WEIGHTS[COUNT]},
}
LOOPS = {
    "scan": (Top.Config(), SCANNED),
    "unroll": (Top.Config().set_in("stack.loop", "unroll"), SCANNED),
    "sequence": (Top.Config(stack=Sequence.Config(layers=[Tells.Config()] * COUNT)), IN_A_ROW),
}


def outcome(cfg, params, **kwargs):
    """Values, what was published, and gradients of both."""
    model = cfg.build()

    def loss(params, x):
        out, collected = call(model, params, x, **kwargs)
        return jnp.sum(jnp.sin(out)), (out, *told(collected))

    (_, found), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, X)
    return found, grads


def weights_of(grads):
    stack = grads["stack"]
    layers = stack["layer"]["weight"] if "layer" in stack else jnp.stack([each["weight"] for each in stack.values()])
    return jnp.concatenate([layers, grads["more"]["weight"][None]])


@pytest.mark.parametrize("remat", [None, Remat()], ids=["kept", "remat"])
@pytest.mark.parametrize("loop", LOOPS)
def test_all_later_layers_see_it_in_a_scan_as_in_a_loop_with_gradients(loop, remat):
    cfg, params = LOOPS[loop]
    found, grads = outcome(modify(Tells.Config, lambda layer: layer.set(remat=remat))(cfg), params)
    want = by_hand(WEIGHTS, X)
    assert_same(found, want)
    wanted = jax.grad(lambda weights, x: jnp.sum(jnp.sin(by_hand(weights, x)[0])), argnums=(0, 1))(WEIGHTS, X)
    assert_same((weights_of(grads[0]), grads[1]), wanted)


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_in_a_pattern_a_later_layer_of_the_same_round_sees_it(loop):
    pattern = (Tells.Config(), Tells.Config(quiet=True), Tells.Config())
    model = Repeat.Config(layer=pattern, num_repeats=2, loop=loop).build()
    weights = jax.random.normal(jax.random.key(2), (6, DIM, DIM)) / 2
    params = {f"layer[{i}]": {"weight": weights[i::3]} for i in range(3)}
    out, collected = jax.jit(lambda params: call(model, params, X))(params)
    assert_same((out, *told(collected)), by_hand(weights, X, quiet=(1, 4)))


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_a_loop_in_a_loop_carries_it_through_both(loop):
    inner = Repeat.Config(layer=Tells.Config(), num_repeats=2, loop=loop)
    model = Repeat.Config(layer=inner, num_repeats=2, loop=loop).build()
    weights = jax.random.normal(jax.random.key(2), (4, DIM, DIM)) / 2
    out, collected = call(model, {"layer": {"layer": {"weight": weights.reshape(2, 2, DIM, DIM)}}}, X)
    assert_same((out, *told(collected)), by_hand(weights, X))


def test_what_is_there_before_a_loop_goes_on_in_it_and_what_keeps_the_first_stays():
    model = Repeat.Config(layer=Tells.Config(), num_repeats=COUNT).build()
    params, start = {"layer": {"weight": WEIGHTS[:COUNT]}}, jnp.ones_like(X)
    shared = {"first": Published(start, jnp.ones(2), "first")}
    _, collected = call(model, params, X, Context(shared=shared))
    np.testing.assert_array_equal(collected.published["first"].value, start)
    assert_same(collected.published["last"].value["value"], _by_hand_from(start))


def _by_hand_from(start):
    x, before = X, None
    for i in range(COUNT):
        value = jnp.tanh(x @ WEIGHTS[i])
        b, total = (value, jnp.zeros(2)) if before is None else (before, jnp.sum(before, axis=(1, 2)))
        x, before = x + start + 0.1 * b + total[:, None, None], value
    return before


def test_a_loop_that_publishes_nothing_is_traced_as_if_there_were_no_such_thing():
    quiet = Repeat.Config(layer=Tells.Config(quiet=True), num_repeats=COUNT).build()
    program = jax.make_jaxpr(lambda x: call(quiet, {"layer": {"weight": WEIGHTS[:COUNT]}}, x)[0])(X)
    [scan] = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"]
    assert scan.params["num_carry"] == 1, "x alone"


@pytest.mark.parametrize("loop", LOOPS)
def test_on_a_mesh_it_is_what_it_is_on_one_device(loop):
    cfg, params = LOOPS[loop]
    mesh = Mesh(data=2, tensor=2)
    with jax.set_mesh(mesh.on()):
        got = jax.device_get(outcome(cfg, params, layout=layout_of(mesh)))
    assert_same(got, jax.device_get(outcome(cfg, params)))


class Counts(Module):
    """Keeps the sum of all that was published before it, in calls that keep state; and publishes its input."""

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.state("total", ("batch", DIM), axes=("batch", None))

    def forward(self, x, context):
        before = context.get("x", jnp.zeros_like(x))
        self.publish("x", x)
        if not self.stateful:
            return x + jnp.cumsum(before, axis=1)
        self.update("total", self.total + jnp.sum(before, axis=1))
        return x + self.total[:, None]


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_it_goes_with_state_one_token_at_a_time(loop):
    model = Repeat.Config(layer=Counts.Config(), num_repeats=COUNT, loop=loop).build()
    params = {"layer": {}}
    state, outs = make_state(state_specs(model, params, X[:, :1], sizes={"batch": 2})), []
    assert {path: leaf.shape for path, leaf in state.items()} == {"layer.total": (COUNT, 2, DIM)}
    for t in range(X.shape[1]):
        out, collected = call(model, params, X[:, t : t + 1], state=state)
        outs, state = [*outs, out], collected.state
    assert_same(jnp.concatenate(outs, axis=1), call(model, params, X)[0])


def test_the_last_of_a_transformation_of_ones_own_is_brought_back():
    class Steps(Module):
        class Config(Module.Config):
            cell: Module.Config = Tells.Config()

        def __init__(self, cfg, **kwargs):
            super().__init__(cfg, **kwargs)
            self.cell = self.child("cell", cfg.cell)

        def forward(self, x):
            cell = self.lift(self.cell)
            x, collected = jax.lax.scan(lambda x, _: cell(cell.params, None, None, x, Context()), x, length=COUNT)
            self.bring(collected, stacked=True)
            return x

    model = Steps.Config().build()
    params = random_params(model)
    _, collected = call(model, params, X)
    x, last = X, collected
    for _ in range(COUNT):
        x, last = call(Tells.Config().build(), params["cell"], x, Context())
    assert_same(told(collected), told(last))


# What is refused.


class Publishes(Module):
    """Publishes what a test wants, where it wants."""

    class Config(Module.Config):
        where: str = "here"

    def forward(self, x, value):
        axes = ("batch", None, None)
        if self.cfg.where == "on_shards":
            return self.on_shards(self._publish, x, in_axes=(axes,), out_axes=axes)
        if self.cfg.where == "vmap":
            return jax.vmap(self._publish)(x)
        self.publish("value", value)
        return x

    def _publish(self, x):
        self.publish("value", x)
        return x


def refused(value: Any = X, where="here"):
    with pytest.raises(ModuleError) as e:
        call(Publishes.Config(where=where).build(path="layer"), {}, X, value)
    return str(e.value)


def test_what_has_no_rows_cannot_be_published():
    assert refused(jnp.ones(())) == "layer (Publishes) publishes 'value': expected arrays [B, ...], found ()."
    assert refused({"a": X, "b": jnp.ones(())}) == (
        "layer (Publishes) publishes 'value': expected arrays [B, ...], found {'a': (2, 5, 4), 'b': ()}."
    )


def test_publications_do_not_leave_shards_or_transformations_of_ones_own():
    assert refused(where="on_shards") == (
        "layer (Publishes) publishes 'value' inside on_shards. Return it, and publish it outside."
    )
    assert refused(where="vmap").startswith("layer (Publishes) publishes 'value' inside a JAX transformation")


def test_rows_that_are_the_same_for_all_are_widened():
    value = {"a": X, "b": jnp.ones((1, 3))}
    _, collected = call(Publishes.Config().build(), {}, X, value)
    assert jax.tree.map(jnp.shape, collected.published["value"].value) == {"a": X.shape, "b": (2, 3)}
