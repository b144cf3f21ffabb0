# SPDX-License-Identifier: Apache-2.0
"""Norms are their definitions, with statistics in float32 whatever the dtype of the input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import layer_norm, rms_norm
from support import reference
from support.numeric import BFLOAT16, FLOAT32, check

# One rounding of the result; a gradient is the sum of two terms that were rounded once each.
DTYPES = pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 3 * BFLOAT16)])
SCALE, BIAS = jnp.linspace(0.5, 2.0, 8), jnp.linspace(-1.0, 1.0, 8)


def normal(shape, dtype):
    return (3 * jax.random.normal(jax.random.key(0), shape) + 1).astype(dtype)


@DTYPES
@pytest.mark.parametrize("shape", [(8,), (2, 3, 8)])
def test_rms_norm_is_its_definition(shape, dtype, tolerance):
    def ours(x, scale):
        return rms_norm(x, scale, eps=1e-3)

    got = check(ours, lambda x, s: reference.rms_norm(x, s, 1e-3), normal(shape, dtype), SCALE, tolerance=tolerance)
    assert got.dtype == dtype


@DTYPES
@pytest.mark.parametrize("shape", [(8,), (2, 3, 8)])
def test_layer_norm_is_its_definition(shape, dtype, tolerance):
    def ours(x, scale, bias):
        return layer_norm(x, scale, bias, eps=1e-3)

    def definition(x, scale, bias):
        return reference.layer_norm(x, scale, bias, 1e-3)

    got = check(ours, definition, normal(shape, dtype), SCALE, BIAS, tolerance=tolerance)
    assert got.dtype == dtype


def test_scale_and_bias_can_be_left_out():
    x = normal((2, 8), jnp.float32)
    check(lambda x: rms_norm(x, None, eps=1e-3), lambda x: reference.rms_norm(x, None, 1e-3), x)
    check(lambda x: layer_norm(x, None, None, eps=1e-3), lambda x: reference.layer_norm(x, None, None, 1e-3), x)
    check(
        lambda x: layer_norm(x, None, BIAS, eps=1e-3),
        lambda x: reference.layer_norm(x, None, np.linspace(-1, 1, 8), 1e-3),
        x,
    )


@pytest.mark.parametrize(
    "norm", [lambda x: rms_norm(x, SCALE, eps=1e-6), lambda x: layer_norm(x, SCALE, BIAS, eps=1e-6)]
)
def test_a_row_of_zeros_has_a_finite_value_and_gradient(norm):
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(norm(x)))(jnp.zeros((2, 8)))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("norm", [lambda x: rms_norm(x, None, eps=0.0), lambda x: layer_norm(x, None, None, eps=0.0)])
def test_statistics_of_bfloat16_are_in_float32(norm):
    # 512 ones of either sign: in bfloat16, a sum of their squares stops growing at 256.
    x = jnp.tile(jnp.array([1.0, -1.0], jnp.bfloat16), 256)
    np.testing.assert_array_equal(norm(x), x)


def test_layer_norm_of_numbers_far_from_zero_keeps_its_digits():
    # The variance of 1e4 +- 1 as a difference of squares would lose all digits of float32: 1e8 has steps of 8.
    x = jnp.array([1e4 - 1, 1e4 + 1])
    np.testing.assert_allclose(layer_norm(x, None, None, eps=0.0), [-1, 1], rtol=1e-6)


def test_no_rows_are_no_trouble():
    assert rms_norm(jnp.ones((0, 8)), SCALE, eps=1e-6).shape == (0, 8)
    assert layer_norm(jnp.ones((0, 8)), SCALE, BIAS, eps=1e-6).shape == (0, 8)
