# SPDX-License-Identifier: Apache-2.0
"""Products in 8 bits are off by no more than their formats say, forward and backward."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.ops import float8_matmul, int8_matmul
from support.numeric import FLOAT32, assert_close, float64, normal

# A format: its largest number; what rounding to nearest is off by, relative to a number and at least (in a float, half
# of the smallest number; in integers, half of 1); and a rounding by NumPy.
INT8 = (127.0, 0.0, 0.5, np.rint)
E4M3 = (448.0, 2.0**-4, 2.0**-10, lambda x: x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64))
E5M2 = (57344.0, 2.0**-3, 2.0**-17, lambda x: x.astype(ml_dtypes.float8_e5m2).astype(np.float64))
KINDS = {"int8": (int8_matmul, INT8, INT8), "float8": (float8_matmul, E4M3, E5M2)}
each_kind = pytest.mark.parametrize("kind", KINDS)
# Relative, of what is done in the dtype of the inputs: sums of up to 32 terms, and products with scales.
ROUNDING = {jnp.float32: 40 * 2.0**-24, jnp.bfloat16: 3 * 2.0**-9}


def scales(x, axis, largest):
    found = np.abs(x).max(axis, keepdims=True) / largest
    return np.where(found == 0, 1.0, found)


def reference(a, b, a_format, b_format):
    """Rounds rows and columns and multiplies, in float64."""
    rows, columns = scales(a, 1, a_format[0]), scales(b, 0, b_format[0])
    return (a_format[3](a / rows) @ b_format[3](b / columns)) * rows * columns


def bound(a, b, a_format, b_format, dtype):
    """Returns how far a product can be from the exact one, given the formats."""

    def off(x, axis, kind):
        scale = scales(x, axis, kind[0])
        return np.maximum(kind[1] * np.abs(x), kind[2] * scale) * (1 + FLOAT32)

    a_off, b_off = off(a, 1, a_format), off(b, 0, b_format)
    products = (np.abs(a) + a_off) @ (np.abs(b) + b_off)
    return a_off @ np.abs(b) + np.abs(a) @ b_off + a_off @ b_off + ROUNDING[dtype] * products


@functools.partial(jax.jit, static_argnums=(0, 1))
def value_and_gradients(kind, gradients, x, weight, slope):
    y, pull = jax.vjp(lambda x, weight: KINDS[kind][0](x, weight, gradients=gradients), x, weight)
    return (y, *pull(slope))


def factors(kind, x, weight, slope) -> Any:
    """Returns the three products, as factors and their formats."""
    _, values, slopes = KINDS[kind]
    return (x, weight, values, values), (slope, weight.T, slopes, values), (x.T, slope, values, slopes)


ARGS = normal(0, (6, 32)), normal(1, (32, 5)), normal(2, (6, 5))


@each_kind
def test_products_are_those_of_rounded_rows_and_columns(kind):
    wanted = [reference(*each) for each in factors(kind, *float64(ARGS))]
    assert_close(value_and_gradients(kind, "all", *ARGS), tuple(wanted), FLOAT32)


@each_kind
def test_gradients_are_rounded_where_asked_for_and_exact_elsewhere(kind):
    x, weight, slope = float64(ARGS)
    none, inputs, both = (value_and_gradients(kind, which, *ARGS)[1:] for which in ("none", "inputs", "all"))
    assert_close(none, (slope @ weight.T, x.T @ slope), FLOAT32)
    assert_close(inputs, (float64(both[0]), x.T @ slope), FLOAT32)
    for exact, rounded in zip(none, both, strict=True):
        assert np.abs(exact - rounded).max() > 1e-3


# Sizes of rows and columns differ by many powers of two; some elements and whole rows are zero.
sizes = st.lists(st.integers(-20, 20), min_size=6, max_size=6)


@each_kind
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@given(seed=st.integers(0, 2**32 - 1), powers=sizes, zeros=st.floats(0, 1))
@settings(max_examples=50)
def test_no_product_is_further_off_than_the_formats_say(kind, dtype, seed, powers, zeros):
    rng = np.random.default_rng(seed)
    x, weight, slope = (rng.standard_normal(shape) for shape in ((6, 16), (16, 6), (6, 6)))
    x, slope = x * 2.0 ** np.array(powers)[:, None], slope * 2.0 ** np.array(powers)[::-1]
    x, weight = x * (rng.random(x.shape) >= zeros), weight * 2.0 ** np.array(powers) * (rng.random(6) >= zeros)
    args = [jnp.asarray(each, dtype) for each in (x, weight, slope)]
    for got, each in zip(value_and_gradients(kind, "all", *args), factors(kind, *float64(args)), strict=True):
        assert got.dtype == dtype
        assert (np.abs(float64(got) - each[0] @ each[1]) <= bound(*each, dtype=dtype)).all()


def with_one_bit(x):
    """Rounds to one bit after the leading one; e4m3 has three."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(4 * fraction) / 4, exponent)


def test_a_rounding_with_two_bits_fewer_is_beyond_the_bound():
    fewer = {"int8": (31.0, *INT8[1:]), "float8": (*E4M3[:3], with_one_bit)}
    x, weight = float64((normal(0, (99, 2)), normal(1, (2, 99))))  # Few terms, whose errors do not cancel.
    for kind, changed in fewer.items():
        allowed = KINDS[kind][1]
        off = np.abs(reference(x, weight, changed, changed) - x @ weight)
        assert (off > bound(x, weight, allowed, allowed, jnp.float32)).any(), kind


@each_kind
def test_numbers_of_the_format_and_zeros_are_exact(kind):
    rng = np.random.default_rng(0)
    x, weight = rng.integers(-7, 8, (4, 16)), rng.integers(-7, 8, (16, 3))
    top = KINDS[kind][1][0]
    x[:, 0], weight[0], x[1], weight[:, 2] = top, top, 0, 0
    got = KINDS[kind][0](jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32), gradients="none")
    assert_close(got, x @ weight, FLOAT32)
    np.testing.assert_array_equal(got[1], 0)
    np.testing.assert_array_equal(got[:, 2], 0)
