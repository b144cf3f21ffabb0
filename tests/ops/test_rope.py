# SPDX-License-Identifier: Apache-2.0
"""Rotation by position is multiplication by a complex number, and only distances matter to scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import rotary_frequencies, rotate
from support import reference
from support.numeric import BFLOAT16, FLOAT32, check

X = jax.random.normal(jax.random.key(0), (2, 5, 3, 8))
POSITIONS = jnp.array([[0, 1, 2, 3, 4], [7, 8, 0, 100, 1]])


def turned(x, positions, theta=100.0):
    return rotate(x, positions, rotary_frequencies(x.shape[-1], theta))


# One rounding, of the result.
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 2 * BFLOAT16)])
@pytest.mark.parametrize("positions", [POSITIONS, POSITIONS[:1]], ids=["by row", "for all rows"])
def test_rotate_is_complex_multiplication(positions, dtype, tolerance):
    def definition(x):
        return reference.rotate(x, np.asarray(positions), 100.0)

    got = check(lambda x: turned(x, positions), definition, X.astype(dtype), tolerance=tolerance)
    assert got.dtype == dtype


def test_frequencies_fall_from_one_by_a_constant_factor():
    # Powers in float32, rounded once or twice.
    np.testing.assert_allclose(rotary_frequencies(8, 10_000.0), [1.0, 0.1, 0.01, 0.001], rtol=1e-6)


def test_position_zero_changes_nothing():
    np.testing.assert_array_equal(turned(X, jnp.zeros((1, 5), jnp.int32)), X)


def test_lengths_stay_and_scores_depend_on_the_distance_alone():
    q, k = X[:, :, 0:1], X[:, :, 1:2]

    def scores(start):
        at = jnp.arange(start, start + 5)[None]
        return jnp.einsum("bthk,bshk->bts", turned(q, at), turned(k, at))

    # Angles up to 55 in float32 are off by 55 * 6e-8 = 3e-6, times sums of 8 products of size 1.
    np.testing.assert_allclose(scores(0), scores(50), atol=5e-5)
    assert np.abs(np.asarray(scores(0) - jnp.einsum("bthk,bshk->bts", q, k))).max() > 0.1, "rotation must matter"
    norms = jnp.linalg.norm(turned(X, POSITIONS), axis=-1)
    np.testing.assert_allclose(norms, jnp.linalg.norm(X, axis=-1), rtol=1e-6)


def test_angles_of_bfloat16_inputs_are_in_float32():
    # 257 is not a bfloat16: rounded to 256, the first pair would be turned by a whole radian less.
    x = jnp.zeros((1, 1, 1, 8)).at[..., 0].set(1.0).astype(jnp.bfloat16)
    got = turned(x, jnp.array([[257]]))
    np.testing.assert_allclose(float(got[0, 0, 0, 0]), np.cos(257), atol=BFLOAT16)
