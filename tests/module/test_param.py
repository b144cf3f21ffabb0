# SPDX-License-Identifier: Apache-2.0
"""Parameter specs: fans, stacks and initial values, against what the formulas say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.module import ParamSpec, constant, normal, variance_scaling

KEY = jax.random.key(0)


def spec(shape, init, in_dims=(-2,), out_dims=(-1,), dtype=jnp.float32):
    return ParamSpec(shape, (None,) * len(shape), init, dtype, in_dims, out_dims)


def test_sizes_and_fans():
    heads = spec((4, 64, 8, 16), constant(0.0), in_dims=(-3,), out_dims=(-2, -1), dtype=jnp.bfloat16)
    assert (heads.size, heads.nbytes, heads.fan_in, heads.fan_out) == (32768, 65536, 64, 128)


def test_stacking_adds_the_layers_axis_and_keeps_the_fans():
    one = spec((64, 32), constant(0.0))
    two = one.stacked(5).stacked(3)
    assert (two.shape, two.axes, two.stack) == ((3, 5, 64, 32), ("layers", "layers", None, None), 2)
    assert (two.fan_in, two.fan_out) == (one.fan_in, one.fan_out) == (64, 32)


@pytest.mark.parametrize("mode, fan", [("fan_in", 600), ("fan_out", 200), ("fan_avg", 400)])
@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform"])
def test_variance_scaling_has_variance_scale_over_fan(mode, fan, distribution):
    # Experts (the first dimension) and the layer of a stack are not part of a fan.
    made = spec((2, 600, 200), variance_scaling(3.0, mode, distribution)).stacked(2).make(KEY)
    assert made.shape == (2, 2, 600, 200)
    got = np.asarray(made, np.float64).reshape(4, -1)
    # 120,000 draws: the sample variance is within 3 % of the truth at more than 5 standard errors.
    np.testing.assert_allclose(got.var(axis=1), 3.0 / fan, rtol=0.03)
    np.testing.assert_allclose(got.mean(axis=1), 0, atol=5 * (3.0 / fan / got.shape[1]) ** 0.5)


def test_normal_has_its_standard_deviation():
    got = np.asarray(spec((500, 400), normal(0.02)).make(KEY), np.float64)
    np.testing.assert_allclose([got.mean(), got.std()], [0, 0.02], atol=2e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_constant_has_the_dtype_of_the_spec(dtype):
    made = spec((2, 3), constant(2), dtype=dtype).make(KEY)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made, np.full((2, 3), 2))


def test_each_layer_of_a_stack_is_filled_as_if_alone():
    one = spec((3, 4), variance_scaling())
    stacked = one.stacked(5).make(KEY)
    for i in range(5):
        np.testing.assert_array_equal(stacked[i], one.make(jax.random.fold_in(KEY, i)))
    np.testing.assert_array_equal(one.stacked(9).make(KEY)[:5], stacked)


def test_a_rule_is_applied_to_each_layer_of_a_stack_on_its_own():
    def centre(value, update):
        return value - jnp.mean(value) + update

    one = dataclasses.replace(spec((4,), constant(0.0), (), ()), update_rule=centre)
    value, update = jnp.arange(24.0).reshape(3, 2, 4), jnp.ones((3, 2, 4))
    got = one.stacked(2).stacked(3).changed(value, update)
    for i, j in np.ndindex(3, 2):
        np.testing.assert_allclose(got[i, j], centre(value[i, j], update[i, j]))
