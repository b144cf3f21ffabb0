# SPDX-License-Identifier: Apache-2.0
"""The training step: exact accumulation, randomness from seed and step alone, and a loss that falls."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.models import CausalLM
from dovetail.module import call, init, specs
from dovetail.nn import Attention, GatedFeedForward, PreNormBlock, RepeatedBlock
from dovetail.optim import AdamW, ConstantSchedule, Learner
from dovetail.train import eval_step, init_state, train_step
from support.compare import assert_same

VOCAB = 16


def setup(dropout=0.0, num_microbatches=1, rate=1e-2):
    block = PreNormBlock.Config(mixer=Attention.Config(num_heads=2), ffn=GatedFeedForward.Config(hidden_dim=16))
    stack = RepeatedBlock.Config(layer=block.set_in("dropout.rate", dropout), num_layers=2)
    model = CausalLM.Config(vocab_size=VOCAB, dim=8, stack=stack).build()
    learner = Learner.Config(optimizer=AdamW.Config(), schedule=ConstantSchedule.Config(peak=rate)).build(
        specs=specs(model)
    )
    step = jax.jit(train_step(model, learner, seed=3, num_microbatches=num_microbatches, dtype=None))
    state = init_state(init(model, jax.random.key(0)), learner)
    return model, step, state


def batch(seed, rows=4, time=8):
    keys = jax.random.split(jax.random.key(seed), 2)
    ids = jax.random.randint(keys[0], (rows, time + 1), 0, VOCAB)
    lengths = jax.random.randint(keys[1], (rows, 1), 1, time + 1)
    real = jnp.arange(time)[None] < lengths
    return {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "weights": real.astype(jnp.float32),
        "segments": real.astype(jnp.int32),
        "positions": jnp.broadcast_to(jnp.arange(time), (rows, time)),
    }


def test_accumulation_of_any_split_equals_the_full_batch():
    results = []
    for count in (1, 2, 4):
        _, step, state = setup(num_microbatches=count)
        state, _ = step(state, batch(0))
        state, metrics = step(state, batch(1))
        results.append((state.params, metrics["loss"], metrics["tokens"], metrics["accuracy"]))
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


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
    logits, _ = call(model, state.params, data["tokens"], segments=data["segments"])
    exact, targets = np.asarray(logits, np.float64), np.asarray(data["targets"])
    log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    weights = np.asarray(data["weights"], np.float64)
    want = -(np.take_along_axis(log_probs, targets[..., None], -1)[..., 0] * weights).sum()
    hits = ((exact.argmax(-1) == targets) * weights).sum()
    got = jax.jit(eval_step(model, dtype=None))(state.params, data)
    np.testing.assert_allclose(got, [want, weights.sum(), hits], rtol=1e-5)


def test_loss_falls():
    model, step, state = setup(rate=3e-2)
    data = batch(0)
    evaluate = jax.jit(eval_step(model, dtype=None))
    losses = []
    for _ in range(60):
        state, metrics = step(state, data)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.2 * losses[0]
    after, weight, correct = evaluate(state.params, data)
    assert float(after / weight) < 0.25 * losses[0]
    assert float(correct / weight) > 0.9


def test_bfloat16_compute_keeps_float32_parameters():
    model, _, state = setup()
    learner = Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2)).build(specs=specs(model))
    step = jax.jit(train_step(model, learner, seed=0, num_microbatches=2, dtype=jnp.bfloat16))
    state, metrics = step(init_state(state.params, learner), batch(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.float32)}
    assert np.isfinite(float(metrics["loss"]))
