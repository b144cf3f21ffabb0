# SPDX-License-Identifier: Apache-2.0
"""The lift: what a method does inside a user's own transformation is what it does in a plain loop, and comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED
from dovetail.module import Module, ModuleError, Remat, call, init, per_layer, state_specs
from support.compare import assert_same

STEPS, DIM = 3, 4


class Cell(Module):
    """A step of a recurrence with noise, a summary, a loss and a count of calls."""

    class Config(Module.Config):
        dim: int = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (cfg.dim, cfg.dim), axes=(None, None))
        self.state("calls", (), axes=(), dtype=jnp.int32)

    def forward(self, x):
        if self.stateful:
            self.update("calls", self.calls + 1)
        x = jnp.tanh(x @ self.weight)
        if self.training:
            x = x + jax.random.normal(self.rng(), x.shape)
        self.summary("size", jnp.mean(jnp.abs(x)))
        self.add_loss("shrink", jnp.mean(jnp.square(x)))
        return x


class Loop(Module):
    """Runs one cell in steps, in a way that a test chooses."""

    class Config(Module.Config):
        dim: int = DIM
        cell: Cell.Config = Cell.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.cell = self.child("cell", cfg.cell.set(dim=cfg.dim))

    def scan(self, x):
        step = self.lift(self.cell)
        x, collected = jax.lax.scan(lambda x, key: step(step.params, None, key, x), x, step.keys(STEPS), length=STEPS)
        self.bring(collected, stacked=True)
        return x

    def unrolled(self, x):
        step, found = self.lift(self.cell), []
        keys = step.keys(STEPS)
        for key in [None] * STEPS if keys is None else keys:
            x, collected = step(step.params, None, key, x)
            found.append(collected)
        self.bring(jax.tree.map(lambda *leaves: jnp.stack(leaves), *found), stacked=True)
        return x

    def carried(self, x):
        step = self.lift(self.cell.forward)

        def body(carry, _):
            x, collected = step(step.params, carry[1], None, carry[0])
            return (x, collected.state), None

        (x, state), _ = jax.lax.scan(body, (x, step.state), length=STEPS)
        _, collected = step(step.params, state, None, x)
        self.bring(collected)
        return x

    def ensemble(self, x):
        member = self.lift(self._member)
        out, collected = jax.vmap(lambda key: member(member.params, None, key, x))(member.keys(2))
        self.bring(collected, stacked=True)
        return out

    def _member(self, x):
        self.summary("mean", jnp.mean(x))
        return self.cell(self.cell(x))

    def slope(self, x):
        score = self.lift(self.cell)

        def scored(x):
            out, collected = score(score.params, None, None, x)
            return jnp.sum(out), collected

        grad, collected = jax.grad(scored, has_aux=True)(x)
        self.bring(collected)
        return grad

    def inside(self, x):
        step = self.lift(self.cell)

        def body(x, _):
            x, collected = step(step.params, None, None, x)
            self.bring(collected)
            return x, None

        return jax.lax.scan(body, x, length=STEPS)[0]

    def forgets(self, x, drop=False):
        step = self.lift(self.cell, drop=drop)
        return step(step.params, None, None, x)[0]

    def twice(self, x):
        first, second = self.lift(self._member), self.lift(self._member)
        for each in (first, second):
            x, collected = each(each.params, None, None, x)
            self.bring(collected)  # Both think that they are the first.
        return x


class Outer(Module):
    """Reaches over the head of its child."""

    class Config(Module.Config):
        loop: Loop.Config = Loop.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.loop = self.child("loop", cfg.loop)

    def forward(self, x):
        return self.lift(self.loop.cell)


@pytest.fixture(scope="module")
def loop():
    model = Loop.Config().build()
    return model, init(model, jax.random.key(0)), jnp.linspace(-1.0, 1.0, DIM)[None]


def outcome(loop, method, **kwargs):
    model, params, x = loop

    def loss(params):
        out, collected = call(model, params, x, method=method, **kwargs)
        return jnp.sum(out) + sum(map(jnp.sum, collected.losses.values())), (out, collected)

    return jax.value_and_grad(loss, has_aux=True)(params)


@pytest.mark.parametrize("train", [False, True])
def test_a_scan_of_a_lifted_child_equals_the_python_loop(loop, train):
    given = {"rng": jax.random.key(1), "train": True} if train else {}
    scanned, looped = outcome(loop, "scan", **given), outcome(loop, "unrolled", **given)
    assert_same(scanned, looped)
    (_, (_, collected)), _ = scanned
    assert {path: value.shape for path, value in collected.summaries.items()} == {"cell[:].size": (STEPS,)}
    assert list(per_layer(collected.losses)) == [f"cell[{i}].shrink" for i in range(STEPS)]


def test_each_step_of_a_scan_has_its_own_noise():
    model = Loop.Config().build()
    zeros = jax.tree.map(jnp.zeros_like, init(model, jax.random.key(0)))
    _, found = call(model, zeros, jnp.zeros((1, DIM)), method="scan", rng=jax.random.key(1), train=True)
    assert len(set(map(float, found.summaries["cell[:].size"]))) == STEPS


def test_state_goes_through_a_scan_of_the_users_own(loop):
    model, params, x = loop
    for start in (0, 5):
        _, collected = call(model, params, x, method="carried", state={"cell.calls": jnp.int32(start)})
        assert collected.state == {"cell.calls": start + STEPS + 1}


def test_state_in_a_scan_of_the_users_own_is_listed_from_a_trace(loop):
    model, params, x = loop
    found = state_specs(model, params, x, method="carried", sizes={})
    assert {path: (spec.shape, spec.dtype) for path, spec in found.items()} == {"cell.calls": ((), jnp.int32)}


def test_a_method_of_ones_own_can_be_lifted_with_children_called_twice(loop):
    model, params, x = loop
    out, found = call(model, params, x, method="ensemble", rng=jax.random.key(1), train=True)
    assert not np.allclose(*out), "members have noise of their own"
    assert {path: value.shape for path, value in found.summaries.items()} == dict.fromkeys(
        ("mean[:]", "cell[:].size", "cell#2[:].size"), (2,)
    )


def test_a_gradient_inside_of_a_model_equals_the_one_outside(loop):
    model, params, x = loop
    got, found = call(model, params, x, method="slope")
    np.testing.assert_allclose(got, jax.grad(lambda x: jnp.sum(jnp.tanh(x @ params["cell"]["weight"])))(x), rtol=1e-6)
    assert list(found.summaries) == ["cell.size"]


def test_remat_around_a_lift_changes_nothing(loop):
    _, params, x = loop
    again = Loop.Config(remat=Remat()).build()
    given = {"rng": jax.random.key(1), "train": True}
    assert_same(outcome(loop, "scan", **given), outcome((again, params, x), "scan", **given))


def test_misuse_is_refused(loop):
    model, params, x = loop
    with pytest.raises(ModuleError, match=r"brings back results inside a JAX transformation(?s:.*)bring them outside"):
        call(model, params, x, method="inside")
    with pytest.raises(ModuleError, match=r"cell#2.size is reported twice in one call"):
        call(model, params, x, method="twice")
    with pytest.raises(ModuleError, match=r"lifted a method that left cell.shrink, and nobody brought it back"):
        call(model, params, x, method="forgets")
    assert not call(model, params, x, method="forgets", drop=True)[1].losses
    outer = Outer.Config().build()
    with pytest.raises(
        ModuleError, match=r"lifts loop.cell \(Cell\). Expected a method of its own, or a public one of"
    ):
        call(outer, init(outer, jax.random.key(0)), x)
