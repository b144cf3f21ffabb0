# SPDX-License-Identifier: Apache-2.0
"""Linear maps of fewer bits are `DenseLinear` but for the rounding of their products, and learn as it does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import config_for, find, replace_all
from dovetail.models import CausalLM
from dovetail.module import call, constant, specs
from dovetail.nn import (
    Attention,
    Block,
    DenseLinear,
    Float8Linear,
    GatedFeedForward,
    Int8Linear,
    Linear,
    Repeat,
)
from dovetail.optim import ConstantSchedule, Learner
from dovetail.train import init_state, train_step
from dovetail.zoo import model
from support.compare import assert_same
from support.models import random_params
from support.numeric import assert_close, normal

SHAPES = {"in_shape": (2, 8), "out_shape": (3, 4), "in_axes": ("a", "b"), "out_axes": ("c", "d")}
DENSE = DenseLinear.Config(bias=True, init=config_for(constant, value=2.0), **SHAPES)
each_kind = pytest.mark.parametrize("kind", [Int8Linear, Float8Linear])


def to(new):
    return replace_all(DenseLinear.Config, new)


@each_kind
def test_it_takes_over_bias_initial_value_and_parameters(kind):
    quantised = to(kind.Config())(DENSE)
    assert (quantised.bias, quantised.init) == (True, DENSE.init)
    dense, new = specs(DENSE.build()), specs(quantised.build())
    assert {name: spec.axes for name, spec in new.items()} == {name: spec.axes for name, spec in dense.items()}


# 16 terms: in integers each factor is off by at most 1/254 of the largest in its row or column, else by 1/16 of itself.
@pytest.mark.parametrize("kind, tolerance", [(Int8Linear, 1e-2), (Float8Linear, 0.1)])
def test_values_are_near_the_dense_ones_and_gradients_and_matrix_can_be_theirs(kind, tolerance):
    cfg = DENSE.set(bias=False)
    dense, quantised = cfg.build(), to(kind.Config(gradients="none"))(cfg).build()
    params, x, slope = random_params(dense), normal(1, (5, 2, 8)), normal(2, (5, 3, 4))
    want, exact = jax.vjp(lambda params, x: call(dense, params, x)[0], params, x)
    got, straight = jax.vjp(lambda params, x: call(quantised, params, x)[0], params, x)
    assert_close(got, want, tolerance)
    assert_same(straight(slope), exact(slope))
    np.testing.assert_array_equal(call(quantised, params, method="matrix")[0], params["weight"])


def test_the_head_of_a_model_can_be_left_as_it_is():
    cfg = replace_all(DenseLinear.Config, Float8Linear.Config(), at="*stack.*")(model("llama3-8b"))
    kinds = {path: type(found) for path, found in find(cfg, Linear.Config)}
    assert {path for path, kind in kinds.items() if kind is DenseLinear.Config} == {"head"}
    assert len(kinds) == 8


# Seeds whose runs are compared, and the steps of each.
SEEDS, STEPS, WORDS = 4, 64, 32


def text(rows=8, length=16):
    """Returns a batch for each step: after each word comes one of four, the first of them in seven of ten cases."""
    rng = np.random.default_rng(0)
    after, ids = rng.integers(0, WORDS, (WORDS, 4)), rng.integers(0, WORDS, (STEPS, rows, length + 1), np.int32)
    for t in range(length):
        ids[..., t + 1] = after[ids[..., t], rng.choice(4, (STEPS, rows), p=(0.7, 0.1, 0.1, 0.1))]
    ones = np.ones((STEPS, rows, length), np.int32)
    found = {"tokens": ids[..., :-1], "targets": ids[..., 1:], "weights": ones.astype(np.float32), "segments": ones}
    return found | {"positions": ones * np.arange(length, dtype=np.int32)}


@functools.cache
def losses(linear):
    """Returns the mean loss of each quarter of the steps, `[4, SEEDS]`, in bfloat16."""
    layer = Block.Config(mixer=Attention.Config(num_heads=2), ffn=GatedFeedForward.Config(hidden_dim=64))
    stack = Repeat.Config(layer=layer, num_layers=1)
    built = to(linear)(CausalLM.Config(vocab_size=WORDS, dim=32, stack=stack)).build()
    learner = Learner.Config(schedule=ConstantSchedule.Config(peak=2e-2)).build(specs=specs(built))
    step = train_step(built, learner, seed=0, num_microbatches=1, dtype=jnp.bfloat16)

    def one(state, batch):
        state, metrics = step(state, batch)
        return state, metrics["loss"]

    states = [init_state(random_params(built, seed), learner) for seed in range(SEEDS)]
    states = jax.tree.map(lambda *each: jnp.stack(each), *states)
    run = jax.jit(jax.vmap(lambda state, batches: jax.lax.scan(one, state, batches)[1], in_axes=(0, None)))
    found = np.asarray(run(states, jax.tree.map(jnp.asarray, text())))
    quarters = found.reshape(SEEDS, 4, -1).mean(-1).T
    assert (quarters[-1] < 0.7 * quarters[0]).all(), "it learns"
    return quarters


def distance(found):
    """Returns by how much the mean over seeds differs from that of bfloat16, and by how much it may.

    The mean of so many other seeds in bfloat16 has, from the mean of these, a distance with the deviation
    `sqrt(2 / SEEDS)` times that of one seed: in 95 of 100 cases, it is at most twice that.
    """
    plain = losses(DenseLinear.Config())
    return np.abs(found.mean(1) - plain.mean(1)), 2 * np.sqrt(2 / SEEDS) * plain.std(1, ddof=1)


@each_kind
def test_the_loss_tracks_bfloat16_as_other_seeds_of_it_do(kind):
    found, allowed = distance(losses(kind.Config(gradients="all")))
    assert (found <= allowed).all(), (found, allowed)


def test_the_loss_in_four_bits_does_not_track_it(monkeypatch):
    def four_bits(x, axis, to):
        scales = jnp.max(jnp.abs(x), axis=axis, keepdims=True).astype(jnp.float32) / 7
        return jnp.round(x.astype(jnp.float32) / jnp.where(scales == 0, 1.0, scales)).astype(to), scales

    monkeypatch.setattr("dovetail.ops._low_precision._rounded", four_bits)
    found, allowed = distance(losses.__wrapped__(Int8Linear.Config(gradients="all")))
    assert (found > allowed).any(), (found, allowed)
