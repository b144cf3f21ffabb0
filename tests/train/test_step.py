# SPDX-License-Identifier: Apache-2.0
"""The training step: exact accumulation, randomness from seed and step alone, and a loss that falls."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.models import CausalLM
from dovetail.module import call, specs
from dovetail.nn import Attention, Block, GatedFeedForward, Repeat
from dovetail.optim import AdamW, ConstantSchedule, Learner, LinearSchedule
from dovetail.train import eval_step, gradients_of, init_state, train_step
from dovetail.train._loss_scales import LossScales
from support.compare import assert_same
from support.models import random_params

VOCAB = 16


def setup(dropout=0.0, num_microbatches=1, rate=1e-2, **fields):
    block = Block.Config(mixer=Attention.Config(num_heads=2), ffn=GatedFeedForward.Config(hidden_dim=16))
    stack = Repeat.Config(layer=block.set_in("dropout.rate", dropout), num_layers=2)
    model = CausalLM.Config(vocab_size=VOCAB, dim=8, stack=stack, **fields).build()
    learner = Learner.Config(optimizer=AdamW.Config(), schedule=ConstantSchedule.Config(peak=rate)).build(
        specs=specs(model)
    )
    step = jax.jit(train_step(model, learner, seed=3, num_microbatches=num_microbatches, dtype=None))
    return model, step, init_state(random_params(model), learner)


def batch(seed, rows=4, time=8):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCAB, (rows, time + 1), np.int32)
    real = np.arange(time) < rng.integers(1, time + 1, (rows, 1))
    return {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "weights": real.astype(np.float32),
        "segments": real.astype(np.int32),
        "positions": np.broadcast_to(np.arange(time, dtype=np.int32), (rows, time)),
    }


def test_accumulation_of_any_split_equals_the_full_batch():
    results = []
    for count in (1, 2, 4):
        _, step, state = setup(num_microbatches=count)
        state, _ = step(state, batch(0))
        state, metrics = step(state, batch(1))
        results.append((state.params, metrics["loss"], metrics["weight"], metrics["accuracy"]))
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


def test_the_reported_loss_is_the_cross_entropy_whatever_else_is_trained():
    plain, with_z = setup(), setup(z_loss=0.5, num_microbatches=2)
    values = [jax.jit(eval_step(model, dtype=None))(state.params, batch(0)) for model, _, state in (plain, with_z)]
    jax.tree.map(np.testing.assert_array_equal, *values)
    (_, alone), (_, metrics) = (step(state, batch(0)) for _, step, state in (plain, with_z))
    np.testing.assert_array_equal(alone["loss"], alone["total_loss"])
    assert_same(metrics["loss"], alone["loss"])
    assert_same(metrics["loss"], values[0].sum / values[0].weight)
    assert metrics["loss/z_loss"] > 0.1
    assert_same(metrics["total_loss"], metrics["loss"] + metrics["loss/z_loss"])
    assert metrics["grad_norm"] != alone["grad_norm"]


def test_a_step_is_a_function_of_state_and_batch_alone():
    _, step, state = setup(dropout=0.5)
    first = step(state, batch(0))
    again = step(state, batch(0))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    later = step(first[0], batch(0))
    _, compiled_again, _ = setup(dropout=0.5)
    jax.tree.map(np.testing.assert_array_equal, later, compiled_again(first[0], batch(0)))
    assert later[1]["loss"] != first[1]["loss"]


def test_evaluation_gives_the_sums_over_real_tokens():
    model, _, state = setup()
    data = batch(0)
    logits, _ = jax.jit(lambda p, d: call(model, p, d["tokens"], segments=d["segments"]))(state.params, data)
    exact, targets = np.asarray(logits, np.float64), data["targets"]
    log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    weights = data["weights"].astype(np.float64)
    want = -(np.take_along_axis(log_probs, targets[..., None], -1)[..., 0] * weights).sum()
    hits = ((exact.argmax(-1) == targets) * weights).sum()
    got = jax.jit(eval_step(model, dtype=None))(state.params, data)
    sums = [got.sum, got.weight, *got.metrics["accuracy"]]
    np.testing.assert_allclose(sums, [want, weights.sum(), hits, weights.sum()], rtol=1e-5)


def test_auxiliary_losses_are_scaled_by_step_and_reported_as_they_count():
    model, step, state = setup(z_loss=0.5)
    learner = Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2)).build(specs=specs(model))
    scales = LossScales({"z_*": LinearSchedule.Config(peak=4.0, total_steps=4), "*": 1.0}, steps=9)
    scaled = jax.jit(train_step(model, learner, seed=3, num_microbatches=2, dtype=None, scales=scales))
    before = init_state(state.params, learner)
    for steps, factor in ((0, 4.0), (1, 3.0), (4, 0.0)):
        at = dataclasses.replace(before, step=jnp.asarray(steps))
        plain, found = step(dataclasses.replace(state, step=at.step), batch(0))[1], scaled(at, batch(0))[1]
        assert_same(found["loss/z_loss"], factor * plain["loss/z_loss"])
        assert_same(found["total_loss"], found["loss"] + found["loss/z_loss"])


@pytest.mark.parametrize("pattern, paths", [("zloss", ["model.z_loss"]), ("*", [])])
def test_a_scale_that_fits_no_auxiliary_loss_is_refused(pattern, paths):
    with pytest.raises(ConfigError, match=r"loss_scales: '.*' fits no"):
        LossScales({pattern: 0.5}, steps=3).check(paths)


def test_parameters_that_are_not_trained_get_no_gradient_and_no_memory_for_one():
    model, _, state = setup()
    trained = jax.tree.map(lambda _: False, specs(model)) | {"head": {"weight": True}}
    options = {"num_microbatches": 2, "dtype": None}
    (_, want), (_, got) = (
        jax.jit(gradients_of(model, trainable=each, **options))(state.params, batch(0), None)
        for each in (None, trained)
    )
    assert_same(got["head"], want["head"])
    rest = {name: leaf for name, leaf in got.items() if name != "head"}
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(rest))
    program = jax.make_jaxpr(gradients_of(model, trainable=trained, **options))(state.params, batch(0), None)
    (loop,) = (eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan")
    assert loop.params["num_carry"] == 1  # The sum of the only gradient.


def test_loss_falls():
    model, step, state = setup(rate=3e-2)
    data = batch(0)
    evaluate = jax.jit(eval_step(model, dtype=None))
    losses = []
    for _ in range(60):
        state, metrics = step(state, data)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.2 * losses[0]
    after = evaluate(state.params, data)
    assert float(after.sum / after.weight) < 0.25 * losses[0]
    assert float(after.metrics["accuracy"][0] / after.weight) > 0.9


def test_bfloat16_compute_keeps_float32_parameters():
    model, _, state = setup()
    learner = Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2)).build(specs=specs(model))
    step = jax.jit(train_step(model, learner, seed=0, num_microbatches=2, dtype=jnp.bfloat16))
    state, metrics = step(init_state(state.params, learner), batch(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.float32)}
    assert np.isfinite(float(metrics["loss"]))
