# SPDX-License-Identifier: Apache-2.0
"""Rotation by position is multiplication by a complex number, and only distances matter to scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.ops import (
    llama3_frequencies,
    longrope_frequencies,
    longrope_magnitude,
    ntk_frequencies,
    rotary_frequencies,
    rotate,
    yarn_frequencies,
    yarn_magnitude,
)
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


def test_interleaved_pairs_are_neighbours():
    halves = jnp.concatenate([X[..., ::2], X[..., 1::2]], axis=-1)
    want = turned(halves, POSITIONS)
    got = rotate(X, POSITIONS, rotary_frequencies(8, 100.0), interleaved=True)
    np.testing.assert_array_equal(got[..., ::2], want[..., :4])
    np.testing.assert_array_equal(got[..., 1::2], want[..., 4:])


def test_a_magnitude_multiplies_the_result():
    got = rotate(X, POSITIONS, rotary_frequencies(8, 100.0), magnitude=1.5)
    np.testing.assert_allclose(got, 1.5 * turned(X, POSITIONS), rtol=1e-5, atol=1e-6)  # Rounded in another order.


def test_frequencies_fall_from_one_by_a_constant_factor():
    np.testing.assert_allclose(rotary_frequencies(8, 10_000.0), [1.0, 0.1, 0.01, 0.001], rtol=1e-12)


def test_ntk_frequencies_are_those_of_a_larger_theta():
    growth, dim = 3.0, 16
    want = rotary_frequencies(dim, 100.0 * growth ** (dim / (dim - 2)))
    got = ntk_frequencies(dim, 100.0, jnp.array([[1.0], [growth]]))
    # Powers in float32, of exponents up to one.
    np.testing.assert_allclose(got, [rotary_frequencies(dim, 100.0), want], rtol=1e-6)
    np.testing.assert_allclose(want[-1], rotary_frequencies(dim, 100.0)[-1] / growth, rtol=1e-12)


def llama3_reference(dim, theta, factor, low, high, length):
    """By wavelengths, one frequency at a time."""
    for i in range(dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * i / dim)
        if wavelength < length / high:
            yield 2 * np.pi / wavelength
        elif wavelength > length / low:
            yield 2 * np.pi / wavelength / factor
        else:
            mix = (length / wavelength - low) / (high - low)
            yield 2 * np.pi / wavelength * ((1 - mix) / factor + mix)


def test_llama3_frequencies_are_their_definition():
    got = llama3_frequencies(64, 5e5, factor=8.0, low=1.0, high=4.0, original_length=8192)
    np.testing.assert_allclose(got, list(llama3_reference(64, 5e5, 8.0, 1.0, 4.0, 8192)), rtol=1e-12)
    ratio = got / rotary_frequencies(64, 5e5)
    assert ratio[0] == 1
    assert ratio[-1] == 1 / 8
    assert ((ratio > 1 / 8) & (ratio < 1)).any(), "some are in between"


def yarn_reference(dim, theta, factor, slow, fast, length, truncate):
    """Peng et al., 2023, section 3.2, with the ramp over the number of the frequency, as in their code."""
    low, high = (dim / 2 * np.log(length / (2 * np.pi * turns)) / np.log(theta) for turns in (fast, slow))
    if truncate:
        low, high = np.floor(low), np.ceil(high)
    for i in range(dim // 2):
        ramp = min(max((i - max(low, 0)) / (min(high, dim - 1) - max(low, 0)), 0), 1)
        frequency = theta ** (-2 * i / dim)
        yield frequency / factor * ramp + frequency * (1 - ramp)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_frequencies_are_their_definition(truncate):
    got = yarn_frequencies(64, 1e4, factor=8.0, slow=1.0, fast=32.0, original_length=4096, truncate=truncate)
    want = list(yarn_reference(64, 1e4, 8.0, 1.0, 32.0, 4096, truncate))
    np.testing.assert_allclose(got, want, rtol=1e-12)
    ratio = got / rotary_frequencies(64, 1e4)
    np.testing.assert_allclose([ratio[0], ratio[-1]], [1, 1 / 8], rtol=1e-12)
    assert ((ratio > 1 / 8) & (ratio < 1)).any(), "some are in between"


def test_yarn_frequencies_without_a_ramp_are_finite():
    # So short a sequence that all of them are slow: the ramp would start and end at the same number.
    got = yarn_frequencies(4, 1e4, factor=2.0, slow=1.0, fast=1.0, original_length=6, truncate=False)
    assert np.isfinite(got).all()


def test_the_magnitude_of_yarn_grows_with_the_logarithm_of_the_factor():
    np.testing.assert_allclose(yarn_magnitude(8.0), 0.1 * np.log(8) + 1, rtol=1e-12)
    np.testing.assert_allclose(yarn_magnitude(40.0, 0.707), 0.0707 * np.log(40) + 1, rtol=1e-12)
    assert yarn_magnitude(1.0) == yarn_magnitude(0.5) == yarn_magnitude(8.0, 0.0) == 1.0


def test_longrope_divides_each_frequency_by_a_number_of_its_own():
    want = [100.0 ** (-2 * i / 8) / number for i, number in enumerate([1.0, 1.5, 4.0, 64.0])]
    np.testing.assert_allclose(longrope_frequencies(8, 100.0, [1.0, 1.5, 4.0, 64.0]), want, rtol=1e-12)


def test_the_magnitude_of_longrope_grows_with_the_logarithm_of_the_factor():
    np.testing.assert_allclose(longrope_magnitude(32.0, 4096) ** 2, 1 + 5 / 12, rtol=1e-12)  # Powers of 2.
    assert longrope_magnitude(1.0, 4096) == longrope_magnitude(0.5, 4096) == 1.0


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
