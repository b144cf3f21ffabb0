# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of given tokens, against a definition in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import chunked_log_probs, log_probs

RNG = np.random.default_rng(0)
LOGITS, TARGETS = 5 * RNG.standard_normal((7, 5)), RNG.integers(0, 5, 7)
WEIGHTS = np.array([1, 1, 0, 0.5, 1, 0, 2], np.float32)


def definition(logits, targets, weights):
    exact = np.asarray(logits, np.float64)
    found = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    return np.where(weights == 0, 0, np.take_along_axis(found, targets[:, None], -1)[:, 0])


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-6), (jnp.bfloat16, 2e-2)])
def test_they_are_their_definition_in_float32(dtype, tolerance):
    got = log_probs(jnp.asarray(LOGITS, dtype), jnp.asarray(TARGETS), jnp.asarray(WEIGHTS))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, definition(LOGITS, TARGETS, WEIGHTS), rtol=tolerance, atol=tolerance)


def test_what_does_not_count_is_zero_and_so_is_its_gradient_whatever_it_is():
    logits = jnp.asarray(LOGITS, jnp.float32).at[2].set(jnp.nan)
    targets = jnp.asarray(TARGETS).at[jnp.array([2, 5])].set(-100)
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(log_probs(x, targets, jnp.asarray(WEIGHTS))))(logits)
    assert np.isfinite(value)
    assert not gradient[jnp.array([2, 5])].any()
    assert gradient[0].any()


@pytest.mark.parametrize("target", [-1, 5])
def test_a_target_that_counts_and_is_no_word_gives_nan(target):
    assert np.isnan(log_probs(jnp.zeros((1, 5)), jnp.array([target]), jnp.ones(1)))[0]


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_change_neither_values_nor_gradients(chunk):
    hidden, weight = jnp.asarray(RNG.standard_normal((7, 4)), jnp.float32), jnp.asarray(RNG.standard_normal((4, 5)))
    factors = jnp.arange(7.0)

    def run(w, how):
        return jnp.sum(factors * how(w))

    def whole(w):
        return log_probs(hidden @ w, jnp.asarray(TARGETS), jnp.asarray(WEIGHTS))

    def chunked(w):
        return chunked_log_probs(hidden, lambda x: x @ w, jnp.asarray(TARGETS), jnp.asarray(WEIGHTS), chunk=chunk)

    weight = weight.astype(jnp.float32)
    np.testing.assert_allclose(chunked(weight), whole(weight), rtol=1e-6, atol=1e-6)
    got, want = (jax.grad(run)(weight, how) for how in (chunked, whole))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
