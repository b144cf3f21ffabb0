# SPDX-License-Identifier: Apache-2.0
"""Products in 8-bit integers are off by half a step for each factor, and have the gradient of exact ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import int8_matmul
from support.numeric import BFLOAT16, FLOAT32, assert_close, float64, normal


def int8_reference(x, weight):
    """Rounds rows and columns to 255 levels and multiplies, in float64."""
    row, column = np.abs(x).max(1, keepdims=True) / 127, np.abs(weight).max(0, keepdims=True) / 127
    return (np.rint(x / row) @ np.rint(weight / column)) * row * column


def test_the_product_is_that_of_rounded_rows_and_columns():
    x, weight = normal(0, (6, 32)), normal(1, (32, 5))
    assert_close(int8_matmul(x, weight), int8_reference(*float64((x, weight))), FLOAT32)


def test_the_product_is_off_by_no_more_than_half_a_step_of_each_factor():
    x, weight = float64((normal(0, (6, 64)), normal(1, (64, 5))))
    off = np.abs(int8_matmul(jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32)) - x @ weight)
    row, column = np.abs(x).max(1, keepdims=True) / 254, np.abs(weight).max(0, keepdims=True) / 254
    bound = row * np.abs(weight).sum(0) + np.abs(x).sum(1, keepdims=True) * column + 64 * row * column
    assert (off <= bound * (1 + FLOAT32)).all()
    assert off.max() > 1e-4, "it is rounded"


def test_whole_numbers_up_to_127_and_zeros_are_exact():
    rng = np.random.default_rng(0)
    x, weight = rng.integers(-127, 128, (4, 16)), rng.integers(-127, 128, (16, 3))
    x[:, 0], weight[0], x[1], weight[:, 2] = 127, 127, 0, 0
    got = int8_matmul(jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32))
    assert_close(got, x @ weight, FLOAT32)
    np.testing.assert_array_equal(got[1], 0)
    np.testing.assert_array_equal(got[:, 2], 0)


# The reference sees rounded inputs; sums are rounded once more, in bfloat16 to 8 bits.
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 3 * BFLOAT16)])
def test_the_gradient_is_that_of_the_exact_product(dtype, tolerance):
    x, weight, slope = normal(0, (6, 8), dtype), normal(1, (8, 5), dtype), normal(2, (6, 5), dtype)
    got, pull = jax.vjp(int8_matmul, x, weight)
    assert got.dtype == dtype
    exact_x, exact_weight, exact_slope = float64((x, weight, slope))
    assert_close(pull(slope), (exact_slope @ exact_weight.T, exact_x.T @ exact_slope), tolerance)
