# SPDX-License-Identifier: Apache-2.0
"""Biases of scores by distance, and the slopes of ALiBi."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import LinearBias, alibi_slopes


@pytest.mark.parametrize(
    "num_heads, slopes",
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2**-i for i in range(1, 9)]),
        # Those of 4 heads, then the first, third, ... of 8.
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (3, [2**-4, 2**-8, 2**-2]),
    ],
)
def test_slopes_are_those_of_the_paper(num_heads, slopes):
    np.testing.assert_allclose(alibi_slopes(num_heads), slopes, rtol=1e-12)


def test_slopes_of_any_number_of_heads_are_different_and_below_one():
    for num_heads in range(1, 40):
        slopes = alibi_slopes(num_heads)
        assert len(set(slopes)) == num_heads
        assert 0 < min(slopes) <= max(slopes) < 1


def test_a_linear_bias_falls_on_both_sides():
    bias = LinearBias(jnp.array([0.5, 2.0], jnp.bfloat16))(jnp.array([[[0, -1, -2], [1, 0, -1]]]))
    want = -np.array([[[[0, 0.5, 1], [0.5, 0, 0.5]], [[0, 2, 4], [2, 0, 2]]]])
    np.testing.assert_array_equal(bias, want)
    assert bias.dtype == jnp.float32
