# SPDX-License-Identifier: Apache-2.0
"""Dropout drops the share it says, keeps the mean, and never repeats itself within a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import ModuleError, call
from dovetail.nn import Dropout
from support.loops import Plain, Repeat, Sequence
from support.models import random_params

X = jnp.ones((100, 100))


DROPS = Dropout.Config(rate=0.3)


def dropped(cfg=DROPS, x=X, seed=0, train=True):
    model = cfg.build()
    params = random_params(model)  # None, in the places where they would be.
    return np.asarray(jax.jit(lambda key: call(model, params, x, rng=key, train=train)[0])(jax.random.key(seed)))


def test_the_share_that_is_dropped_is_the_rate_and_the_mean_stays():
    out = dropped()
    # Of 10^4 draws, the share is off by sqrt(0.3 * 0.7 / 10^4) = 0.0046 as one standard deviation, the mean by
    # 0.0046 / 0.7: four of them.
    np.testing.assert_allclose(np.mean(out == 0), 0.3, atol=0.018)
    np.testing.assert_allclose(out.mean(), 1.0, atol=0.026)
    np.testing.assert_allclose(out[out != 0], 1 / 0.7, rtol=1e-6)


def test_gradients_flow_where_values_do():
    model = Dropout.Config(rate=0.3).build()

    def loss(x):
        return jnp.sum(call(model, {}, x, rng=jax.random.key(0), train=True)[0])

    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(X), dropped())


def test_evaluation_and_a_rate_of_zero_change_nothing_and_need_no_key():
    assert call(Dropout.Config(rate=0.3).build(), {}, X)[0] is X
    assert call(Dropout.Config().build(), {}, X, train=True)[0] is X
    np.testing.assert_array_equal(dropped(train=False), X)


def test_the_dtype_stays():
    out = dropped(x=X.astype(jnp.bfloat16))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.unique(np.float32(out)), [0, np.float32(jnp.bfloat16(1 / 0.7))])


def share_kept_by_both(a, b):
    return np.mean((a != 0) & (b != 0))


def test_draws_are_the_same_for_a_key_and_independent_for_another():
    np.testing.assert_array_equal(dropped(seed=1), dropped(seed=1))
    # Independent masks overlap in 0.7^2 = 0.49 of places, equal ones in 0.7; one standard deviation is 0.005.
    np.testing.assert_allclose(share_kept_by_both(dropped(seed=1), dropped(seed=2)), 0.49, atol=0.02)


LAYER = Plain.Config(inner=Dropout.Config(rate=0.3))


@pytest.mark.parametrize(
    "twice",
    [
        Sequence.Config(layers=[LAYER] * 2),
        Repeat.Config(layer=LAYER, num_repeats=2),
        Repeat.Config(layer=LAYER, num_repeats=2, loop="unroll"),
    ],
    ids=["sequence", "scan", "unroll"],
)
def test_layers_draw_independently(twice):
    np.testing.assert_allclose(np.mean(dropped(twice) != 0), 0.49, atol=0.02)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_rates_outside_of_their_bounds_are_refused(rate):
    with pytest.raises(ConfigError) as e:
        Dropout.Config(rate=rate).build(path="stack.layer.dropout")
    assert str(e.value) == f"stack.layer.dropout (Dropout): rate is {rate}, expected 0 <= rate < 1."


def test_training_without_a_key_says_what_to_pass():
    with pytest.raises(ModuleError) as e:
        call(Dropout.Config(rate=0.3).build(path="dropout"), {}, X, train=True)
    assert str(e.value) == "dropout (Dropout) needs random numbers. Pass rng=jax.random.key(...) to call(...)."
