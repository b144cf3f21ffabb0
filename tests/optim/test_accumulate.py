# SPDX-License-Identifier: Apache-2.0
"""Accumulation over any split equals the full batch, token by token."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dovetail.config import ConfigError
from dovetail.optim import value_and_grad

ROWS, TIME, DIM = 12, 5, 3
KEY = jax.random.key(0)


def make_batch(seed, weights):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(ROWS, TIME, DIM)).astype(np.float32),
        "y": rng.normal(size=(ROWS, TIME)).astype(np.float32),
        "weight": np.asarray(weights, np.float32),
    }


def make_params(dtype=jnp.float32):
    rng = np.random.default_rng(7)
    return {"in": jnp.asarray(rng.normal(size=(DIM, 4)), dtype), "out": jnp.asarray(rng.normal(size=4), dtype)}


def losses_of(params, batch):
    hidden = jnp.tanh(jnp.einsum("btd,df->btf", batch["x"], params["in"]))
    return jnp.square(hidden @ params["out"] - batch["y"])


def loss_fn(params, batch, rng):
    losses = losses_of(params, batch)
    weight = jnp.sum(batch["weight"])
    aux = {
        "tokens": weight,
        "mean": jnp.sum(losses * batch["weight"]) / weight,
        "rows": jnp.sum(batch["weight"], axis=1)[:1],
    }
    return jnp.sum(losses * batch["weight"]), weight, aux


def full(params, batch):
    """The mean over the real tokens of the full batch, and its gradient, by JAX alone."""

    def mean(params):
        return jnp.sum(losses_of(params, batch) * batch["weight"]) / jnp.sum(batch["weight"])

    return jax.value_and_grad(mean)(params)


FULL = jax.jit(full)
SPLIT = {n: jax.jit(partial(value_and_grad, loss_fn, num_microbatches=n)) for n in (1, 2, 3, 4, 6, 12)}


@st.composite
def token_weights(draw):
    """Uneven numbers of real tokens, whole microbatches without any, and weights that are not 0 or 1."""
    lengths = draw(st.lists(st.integers(0, TIME), min_size=ROWS, max_size=ROWS).filter(any))
    scale = draw(st.sampled_from([1.0, 0.3, 7.0]))
    return scale * (np.arange(TIME) < np.array(lengths)[:, None])


@settings(max_examples=40)
@given(n=st.sampled_from(sorted(SPLIT)), weights=token_weights(), seed=st.integers(0, 5))
def test_any_split_gives_loss_and_gradient_of_the_full_batch(n, weights, seed):
    params, batch = make_params(), make_batch(seed, weights)
    (loss, weight, aux), grads = SPLIT[n](params, batch, None)
    want_loss, want = FULL(params, batch)
    np.testing.assert_allclose(weight, weights.sum(), rtol=1e-6)
    np.testing.assert_allclose(loss, want_loss, rtol=2e-6)
    np.testing.assert_allclose(aux["mean"], want_loss, rtol=2e-6)
    # 60 terms in float32, summed in another order: some units of the largest one.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6 * np.abs(b).max()), grads, want)


@pytest.mark.parametrize("n", [1, 3, 12])
def test_in_float64_the_split_does_not_matter_at_all(n):
    weights = np.arange(TIME) < np.random.default_rng(1).integers(1, TIME, ROWS)[:, None]
    with jax.enable_x64(True):
        params, batch = jax.tree.map(jnp.float64, (make_params(), make_batch(3, weights)))
        (loss, _, _), grads = jax.jit(partial(value_and_grad, loss_fn, num_microbatches=n))(params, batch)
        want_loss, want = full(params, batch)
        assert loss.dtype == jnp.float64
        np.testing.assert_allclose(loss, want_loss, rtol=1e-14)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), grads, want)


def test_aux_is_the_mean_weighted_by_microbatch():
    weights = np.ones((ROWS, TIME)) * (np.arange(ROWS) % 3 != 1)[:, None]
    weights[0] = 0.5
    (_, _, aux), _ = SPLIT[3](make_params(), make_batch(0, weights), None)
    sums = [weights[i::3].sum() for i in range(3)]
    assert sums[1] == 0  # Its mean is 0 / 0, and does not count.
    np.testing.assert_allclose(aux["tokens"], np.square(sums).sum() / np.sum(sums), rtol=1e-6)
    np.testing.assert_allclose(aux["rows"], [np.dot(sums, weights[:3].sum(1)) / np.sum(sums)], rtol=1e-6)
    assert jnp.isfinite(aux["mean"])


def test_an_auxiliary_loss_counts_as_its_weighted_mean():
    def with_aux_loss(params, batch, rng):
        loss, weight, _ = loss_fn(params, batch, rng)
        balance = jnp.sum(jnp.square(params["in"])) * jnp.sum(batch["weight"][0])
        return loss + balance * weight, weight, {"balance": balance}

    weights = np.random.default_rng(0).uniform(size=(ROWS, TIME))
    params, batch = make_params(), make_batch(0, weights)
    (loss, _, aux), grads = jax.jit(partial(value_and_grad, with_aux_loss, num_microbatches=4))(params, batch)
    plain_loss, plain = FULL(params, batch)
    sums = np.array([weights[i::4].sum() for i in range(4)])
    factor = np.dot(sums, weights[:4].sum(1)) / sums.sum()
    size = np.square(np.asarray(params["in"], np.float64)).sum()
    np.testing.assert_allclose(aux["balance"], factor * size, rtol=1e-6)
    np.testing.assert_allclose(loss, plain_loss + factor * size, rtol=1e-6)
    np.testing.assert_allclose(grads["in"], plain["in"] + 2 * factor * params["in"], rtol=1e-5)


@pytest.mark.parametrize("n", [1, 4])
def test_each_microbatch_has_a_key_of_its_own(n):
    def noise(params, batch, rng):
        return jnp.sum(params["out"]), jnp.float32(1.0), jax.random.normal(rng, ())

    (_, _, aux), _ = value_and_grad(noise, make_params(), make_batch(0, np.ones((ROWS, TIME))), KEY, n)
    want = [jax.random.normal(jax.random.fold_in(KEY, i), ()) for i in range(n)]
    np.testing.assert_allclose(aux, np.mean(want), rtol=1e-6)


@pytest.mark.parametrize("n", [1, 3])
def test_a_batch_without_weight_has_no_loss_and_no_gradient(n):
    (loss, weight, aux), grads = SPLIT[n](make_params(), make_batch(0, np.zeros((ROWS, TIME))), None)
    assert (float(loss), float(weight), float(aux["mean"])) == (0, 0, 0)
    assert not any(map(np.any, jax.tree.leaves(grads)))


@pytest.mark.parametrize("n", [1, 4])
def test_results_are_float32_for_bfloat16_parameters_and_integer_aux(n):
    def narrow(params, batch, rng):
        loss = jnp.sum(losses_of(params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), batch)))
        return loss, jnp.int32(3), {"count": jnp.int32(2), "flag": jnp.array(True)}

    shapes = jax.eval_shape(
        partial(value_and_grad, narrow, num_microbatches=n),
        make_params(jnp.bfloat16),
        make_batch(0, np.ones((ROWS, TIME))),
    )
    assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes)} == {"float32"}


def test_a_sharded_batch_stays_where_it_is():
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, replicated = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(32, TIME, DIM)), "y": rng.normal(size=(32, TIME)), "weight": np.ones((32, TIME))}
    batch = jax.tree.map(jnp.float32, batch)
    step = jax.jit(partial(value_and_grad, loss_fn, num_microbatches=4))
    compiled = step.lower(jax.device_put(make_params(), replicated), jax.device_put(batch, rows), None).compile()
    # Sums over devices are needed. Moving rows between devices is not.
    assert re.findall(r"all-to-all|collective-permute|all-gather", compiled.as_text() or "") == []
    got = compiled(jax.device_put(make_params(), replicated), jax.device_put(batch, rows), None)
    want = step(make_params(), batch, None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


@pytest.mark.parametrize(
    "batch, n, message",
    [
        ({"x": np.ones(6)}, 0, "num_microbatches is 0, expected at least 1."),
        (
            {"x": np.ones((6, 2))},
            4,
            "batch['x']: 6 rows cannot be split into num_microbatches (4) equal parts.\n  Use one of 1, 2, 3, 6.",
        ),
        (
            {"x": np.ones(6), "y": np.ones(5)},
            1,
            "batch['y'] has 5 rows, batch['x'] has 6. All arrays of a batch have as many.",
        ),
        (
            {"x": np.ones(6), "y": 1.0},
            1,
            "batch['y'] is a scalar. Each array of a batch needs a first dimension, the batch.",
        ),
        ({}, 1, "The batch holds no arrays."),
    ],
)
def test_a_batch_that_cannot_be_split_is_an_error(batch, n, message):
    with pytest.raises(ConfigError) as e:
        value_and_grad(loss_fn, {}, batch, None, n)
    assert str(e.value) == message
