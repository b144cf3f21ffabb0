# SPDX-License-Identifier: Apache-2.0
"""Any dense model becomes a mixture of experts by one replacement, and trains, accumulates and resumes as before."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.config import find, replace_all
from dovetail.module import init, init_run_state, specs
from dovetail.nn import FeedForward, GatedFeedForward, MoEFeedForward, TopKRouter
from dovetail.optim import ConstantSchedule, Learner
from dovetail.train import init_state, train_step
from support.compare import assert_same
from support.models import gpt2, lm

# The statistics of tokens are means: their mean over microbatches is exact, but products of means are not.
BALANCED = TopKRouter.Config(score="sigmoid", selection_rate=0.01, balance_loss=0.0)
KINDS = {
    "default": MoEFeedForward.Config(num_experts=4),
    "balanced by bias": MoEFeedForward.Config(num_experts=4, router=BALANCED),
}
LEARNER = Learner.Config(schedule=ConstantSchedule.Config(peak=3e-2))


def batch(seed, rows=4, time=8):
    ids = jax.random.randint(jax.random.key(seed), (rows, time + 1), 0, 11)
    ones = jnp.ones((rows, time), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(time), (rows, time))
    return {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "weights": ones.astype(jnp.float32),
        "segments": ones,
        "positions": positions,
    }


@functools.cache
def setup(kind, num_microbatches=1):
    model = replace_all(FeedForward.Config, KINDS[kind])(lm()).build()
    learner = LEARNER.build(specs=specs(model))
    step = jax.jit(train_step(model, learner, seed=0, num_microbatches=num_microbatches, dtype=None))
    return step, init_state(init(model, jax.random.key(0)), learner, init_run_state(model))


@pytest.mark.parametrize("dense", [lm(), gpt2()], ids=["gated", "dense"])
def test_one_replacement_makes_a_mixture_of_the_same_hidden_dimension(dense):
    sparse = replace_all(FeedForward.Config, MoEFeedForward.Config(num_experts=4))(dense)
    [(path, ffn)] = find(sparse, FeedForward.Config)
    assert isinstance(ffn, MoEFeedForward.Config)
    assert (path, ffn.hidden_dim, ffn.num_experts) == ("stack.layer.ffn", 12, 4)
    old, up, down = dense.stack.layer.ffn, sparse.get_in("stack.layer.ffn.up"), sparse.get_in("stack.layer.ffn.down")
    assert ffn.activation == old.activation, "and so it is gated if the old one was"
    assert (up.bias, up.init, down.init) == (old.up.bias, old.up.init, old.down.init)
    has_gate = "gate" in specs(sparse.build())["stack"]["layer"]["ffn"]
    assert has_gate == isinstance(old, GatedFeedForward.Config)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_mixture_falls(kind):
    step, state = setup(kind)
    state, first = step(state, batch(0))
    last = first
    for _ in range(50):
        state, last = step(state, batch(0))
    assert last["loss"] < 0.3 * first["loss"]
    assert last["stack.layer[:].ffn.router.load_min"] > 0, "no expert is idle"


def biases(state):
    return np.asarray(state.run_state["stack"]["layer"]["ffn"]["router"]["selection_bias"])


def test_a_bias_moves_by_its_rate_in_each_step_and_in_each_layer_on_its_own():
    step, state = setup("balanced by bias")
    before = biases(state)
    assert before.shape == (2, 4)
    np.testing.assert_array_equal(before, 0)
    after = biases(step(state, batch(0))[0])
    assert {round(float(x), 6) for x in after.flat} == {-0.01, 0.0, 0.01}, "0: as many tokens as is even"
    assert (np.sign(after[0]) != np.sign(after[1])).any()


def test_accumulation_of_any_split_moves_the_bias_as_the_full_batch():
    results = []
    for count in (1, 2):
        step, state = setup("balanced by bias", num_microbatches=count)
        state, _ = step(state, batch(0))
        state, _ = step(state, batch(1))
        results.append((state.params, state.run_state))
    assert_same(results[1], results[0])


def test_a_batch_that_is_skipped_moves_no_bias():
    step, state = setup("balanced by bias")
    bad = batch(0)
    bad["weights"] = bad["weights"].at[0, 0].set(jnp.nan)
    after, metrics = step(state, bad)
    assert metrics["skipped"] == 1
    np.testing.assert_array_equal(biases(after), biases(state))


def test_a_resumed_run_goes_on_with_its_bias(tmp_path):
    step, state = setup("balanced by bias")
    state, _ = step(state, batch(0))
    with Checkpointer.Config(directory=str(tmp_path)).build() as checkpointer:
        checkpointer.save(1, state, data_state={}, config=LEARNER)
        checkpointer.wait()
        restored = checkpointer.restore(jax.eval_shape(lambda: state)).state
    assert np.any(biases(restored))
    jax.tree.map(np.testing.assert_array_equal, step(restored, batch(1)), step(state, batch(1)))
