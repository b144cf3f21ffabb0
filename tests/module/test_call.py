# SPDX-License-Identifier: Apache-2.0
"""Calls of children that are not trained, parts that are switched off, and the step of training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED
from dovetail.module import Module, ModuleError, Remat, call, init_run_state, merged, specs
from support.compare import assert_same
from support.loops import Repeat, Sequence
from support.models import random_params

DIM = 4
X = jax.random.normal(jax.random.key(0), (2, 3, DIM))


class Noisy(Module):
    """A layer that drops in training, reports, and has a part that can be off."""

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (DIM, DIM), axes=(None, None))
        self.state("seen", (), axes=(), lifetime="run")

    def forward(self, x, context=None):
        self.summary("training", float(self.training))
        self.add_loss("size", jnp.mean(jnp.square(self.weight)))
        self.update("seen", jnp.mean(x))
        if self.training:
            x = jnp.where(jax.random.bernoulli(self.rng(), 0.5, x.shape), x, 0)
        x = jnp.tanh(x @ self.weight)
        return x + 1.0 if self.enabled("shift") else x


class Pair(Module):
    """A child that learns and one that does not, in ways that a test chooses."""

    class Config(Module.Config):
        student: Module.Config = Noisy.Config()
        teacher: Module.Config = Noisy.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.student = self.child("student", cfg.student)
        self.teacher = self.child("teacher", cfg.teacher, frozen=True)

    def forward(self, x):
        return self.student(x), self.teacher(x)

    def judged(self, x):
        """The teacher judges what the student makes."""
        return self.teacher(self.student(x))

    def against_itself(self, x, off=("shift",)):
        return self.student(x), self.without_gradient(self.student, x, off=off)


def setup(cfg=None):
    model = (cfg or Pair.Config()).build()
    return model, merged(random_params(model), init_run_state(model))


def squares(tree):
    return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))


def test_a_frozen_child_runs_in_evaluation_mode_and_no_gradient_reaches_it():
    model, values = setup()

    def loss(values):
        outs, collected = call(model, values, X, train=True, rng=jax.random.key(0))
        return squares(outs) + sum(collected.losses.values()), (outs, collected)

    grads, ((_, taught), collected) = jax.grad(loss, has_aux=True)(values)
    assert not np.any(grads["teacher"]["weight"])
    assert np.any(grads["student"]["weight"])
    assert_same(taught, jnp.tanh(X @ values["teacher"]["weight"]) + 1)
    assert {path: float(value) for path, value in collected.summaries.items()} == {
        "student.training": 1,
        "teacher.training": 0,
    }
    assert list(collected.losses) == ["student.size"], "what it adds to the loss does not count"
    assert list(collected.updates) == ["student.seen"], "and its state does not move"


def test_gradients_of_what_a_frozen_child_is_given_pass():
    model, values = setup()

    def loss(values, x):
        return squares(call(model, values, x, method="judged")[0])

    def plain(weight, x):
        inner = jnp.tanh(x @ weight) + 1
        return squares(jnp.tanh(inner @ values["teacher"]["weight"]) + 1)

    grads, of_x = jax.grad(loss, argnums=(0, 1))(values, X)
    want = jax.grad(plain, argnums=(0, 1))(values["student"]["weight"], X)
    assert_same((grads["student"]["weight"], of_x), want)
    assert not np.any(grads["teacher"]["weight"])


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_all_that_is_below_a_frozen_child_is_frozen_also_in_loops_with_remat(loop):
    stack = Repeat.Config(layer=Sequence.Config(layers=[Noisy.Config()], remat=Remat()), num_repeats=2, loop=loop)
    model, values = setup(Pair.Config(teacher=stack))
    spec = specs(model)
    assert spec["teacher"]["layer"]["layers[0]"]["weight"].frozen
    assert not spec["student"]["weight"].frozen

    def loss(values):
        (_, taught), collected = call(model, values, X, train=True, rng=jax.random.key(0))
        return squares(taught), (taught, collected)

    grads, (taught, collected) = jax.grad(loss, has_aux=True)(values)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads))
    want = X
    for weight in values["teacher"]["layer"]["layers[0]"]["weight"]:
        want = jnp.tanh(want @ weight) + 1
    assert_same(taught, want)
    np.testing.assert_array_equal(collected.summaries["teacher.layer[:].layers[0].training"], [0, 0])


def test_a_child_runs_without_gradient_and_without_some_of_its_parts():
    model, values = setup()

    def loss(values, kept):
        learned, reference = call(model, values, X, train=True, rng=jax.random.key(0), method="against_itself")[0]
        return squares(reference) + kept * squares(learned), reference

    grads, reference = jax.grad(loss, has_aux=True)(values, 0.0)
    assert not np.any(grads["student"]["weight"])
    assert_same(reference, jnp.tanh(X @ values["student"]["weight"]))
    assert np.any(jax.grad(loss, has_aux=True)(values, 1.0)[0]["student"]["weight"])
    (_, whole), _ = call(model, values, X, (), method="against_itself")
    assert_same(whole, jnp.tanh(X @ values["student"]["weight"]) + 1)


def test_parts_stay_off_in_all_that_is_below():
    stack = Repeat.Config(layer=Noisy.Config(remat=Remat()), num_repeats=2)
    model, values = setup(Pair.Config(student=stack))
    (_, reference), _ = call(model, values, X, method="against_itself")
    want = X
    for weight in values["student"]["layer"]["weight"]:
        want = jnp.tanh(want @ weight)
    assert_same(reference, want)


def test_only_public_methods_of_children_run_without_gradient():
    class Reaches(Module):
        class Config(Module.Config):
            stack: Module.Config = Sequence.Config(layers=[Noisy.Config()])

        def __init__(self, cfg, **kwargs):
            super().__init__(cfg, **kwargs)
            self.stack = self.child("stack", cfg.stack)

        def forward(self, x):
            return self.without_gradient(self.stack.layers[0], x)

    model, values = setup(Reaches.Config())
    with pytest.raises(ModuleError) as e:
        call(model, values, X)
    assert str(e.value) == (
        "(root) (Reaches) runs stack.layers[0] (Noisy) without gradient. Expected a public method of its children."
    )


# The step of training.


class Annealed(Module):
    """Multiplies by the number of the step."""

    class Config(Module.Config):
        by: float = REQUIRED

    def forward(self, x, context=None):
        return x * (1 + self.cfg.by * self.step)


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_the_step_is_known_everywhere_and_may_be_traced(loop):
    model = Repeat.Config(layer=Annealed.Config(by=1.0, remat=Remat()), num_repeats=2, loop=loop).build()
    run = jax.jit(lambda step: call(model, {"layer": {}}, X, step=step)[0])
    assert_same(run(jnp.float32(2.0)), 9 * X)
    assert_same(call(model, {"layer": {}}, X, step=0)[0], X)


def test_a_step_that_is_not_told_is_asked_for():
    with pytest.raises(ModuleError) as e:
        call(Annealed.Config(by=1.0).build(path="anneal"), {}, X)
    assert str(e.value) == "anneal (Annealed) asks for the step of training. Say which it is: call(..., step=0)."
