# SPDX-License-Identifier: Apache-2.0
"""The global norm and clipping by it, against NumPy in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.optim import clip_by_norm, global_norm

TREE = {"a": np.linspace(-3.0, 4.0, 12).reshape(3, 4), "b": {"c": np.array([0.5, -2.0])}}
NORM = np.linalg.norm(np.concatenate([TREE["a"].ravel(), TREE["b"]["c"]]))


def cast(dtype):
    return {"a": jnp.asarray(TREE["a"], dtype), "b": {"c": jnp.asarray(TREE["b"]["c"], dtype)}}


@pytest.mark.parametrize("dtype, tol", [(jnp.float32, 1e-6), (jnp.bfloat16, 4e-3)])
def test_norm_is_that_of_all_numbers_together(dtype, tol):
    got = global_norm(cast(dtype))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, NORM, rtol=tol)


def test_norm_sums_bfloat16_in_float32():
    ones = jnp.ones(100_000, jnp.bfloat16)  # A sum in bfloat16 would stop at 256.
    np.testing.assert_allclose(global_norm([ones]), np.sqrt(100_000), rtol=1e-6)


@pytest.mark.parametrize("limit", [0.1, 0.999 * NORM, 1.001 * NORM, 100.0])
def test_clipped_to_the_limit_if_larger_and_else_unchanged(limit):
    tree = cast(jnp.float32)
    got = clip_by_norm(tree, global_norm(tree), limit)
    factor = min(1.0, limit / NORM)
    np.testing.assert_allclose(got["a"], TREE["a"] * factor, rtol=1e-6)
    np.testing.assert_allclose(got["b"]["c"], TREE["b"]["c"] * factor, rtol=1e-6)


def test_zero_stays_zero_and_nothing_has_norm_zero():
    zero = {"a": jnp.zeros(3)}
    np.testing.assert_array_equal(clip_by_norm(zero, global_norm(zero), 1.0)["a"], np.zeros(3))
    assert global_norm({}) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_norm_is_finite_only_if_all_numbers_are(bad):
    assert not np.isfinite(global_norm({"a": jnp.ones(3), "b": jnp.array([1.0, bad])}))
