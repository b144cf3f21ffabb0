# SPDX-License-Identifier: Apache-2.0
"""The moving average of parameters, against definitions in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.optim import EMA

PARAMS = np.random.default_rng(0).normal(size=(30, 5))  # Initial ones, and after each of 29 updates.


def average(cfg, params, dtype=jnp.float32):
    """Returns the averages after each update."""
    ema = cfg.build()
    mean, update, means = ema.init(jnp.asarray(params[0], dtype)), jax.jit(ema.update), []
    for t, p in enumerate(params[1:], 1):
        mean = update(mean, jnp.asarray(p, dtype), jnp.int32(t))
        means.append(mean)
    assert {m.dtype for m in means} == {jnp.dtype("float32")}
    return np.stack(means)


def params_reference(decay):
    mean = PARAMS[0]
    for p in PARAMS[1:]:
        mean = decay * mean + (1 - decay) * p
        yield mean


def debias_reference(decay):
    """The mean from zero, divided by the sum of its weights, as in Adam."""
    mean = 0.0
    for t, p in enumerate(PARAMS[1:], 1):
        mean = decay * mean + (1 - decay) * p
        yield mean / (1 - decay**t)


def warmup_reference(decay):
    """As tf.train.ExponentialMovingAverage(decay, num_updates=t)."""
    mean = PARAMS[0]
    for t, p in enumerate(PARAMS[1:], 1):
        now = min(decay, (1 + t) / (10 + t))
        mean = now * mean + (1 - now) * p
        yield mean


REFERENCES = {"params": params_reference, "debias": debias_reference, "warmup": warmup_reference}


@pytest.mark.parametrize("start", ["params", "debias", "warmup"])
@pytest.mark.parametrize("decay", [0.5, 0.9999])
def test_average_is_as_defined(start, decay):
    got = average(EMA.Config(decay=decay, start=start), PARAMS)
    np.testing.assert_allclose(got, list(REFERENCES[start](decay)), rtol=2e-5, atol=1e-6)


def test_average_of_bfloat16_parameters_moves_in_float32():
    params = np.stack([np.zeros(3), *[np.ones(3)] * 100])
    got = average(EMA.Config(decay=0.999), params, jnp.bfloat16)
    np.testing.assert_allclose(got[-1], 1 - 0.999**100, rtol=1e-5)


def test_initial_average_is_a_copy():
    params = {"w": jnp.arange(3.0)}
    for init in (EMA.Config().build().init, jax.jit(EMA.Config().build().init)):
        assert init(params)["w"].unsafe_buffer_pointer() != params["w"].unsafe_buffer_pointer()


@pytest.mark.parametrize("decay", [0.0, 1.0, float("nan")])
def test_out_of_range_is_refused_when_built(decay):
    with pytest.raises(ConfigError) as e:
        EMA.Config(decay=decay).build()
    assert str(e.value) == f"(root) (EMA): decay is {decay}, expected more than 0 and less than 1."
