# SPDX-License-Identifier: Apache-2.0
"""Linear layers multiply the last dimensions by a weight, whatever their number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, config_for
from dovetail.module import ModuleError, call, constant, init, normal, specs
from dovetail.nn import DenseLinear
from support import numeric, reference
from support.models import random_params
from support.numeric import BFLOAT16, FLOAT32, cast, check


def dense(in_shape, out_shape, **fields):
    axes = ("a", "b", "c")
    in_axes, out_axes = axes[: len(in_shape)], axes[: len(out_shape)]
    return DenseLinear.Config(in_shape=in_shape, out_shape=out_shape, in_axes=in_axes, out_axes=out_axes, **fields)


# Inputs are rounded before the reference sees them; the sum is rounded once, and again with the bias.
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 3 * BFLOAT16)])
@pytest.mark.parametrize(
    "batch, in_shape, out_shape, bias",
    [((2, 5), (4,), (3,), False), ((), (4,), (3,), True), ((2, 5), (4,), (2, 3), True), ((2,), (2, 3), (4,), True)],
)
def test_dense_linear_is_a_matrix_product(batch, in_shape, out_shape, bias, dtype, tolerance):
    model = dense(in_shape, out_shape, bias=bias).build()
    params = cast(random_params(model), dtype)

    def definition(params, x):
        return reference.linear(params, x, num_in=len(in_shape))

    x = numeric.normal(1, batch + in_shape, dtype)
    got = check(lambda params, x: call(model, params, x)[0], definition, params, x, tolerance=tolerance)
    assert (got.shape, got.dtype) == (batch + out_shape, dtype)
    assert set(params) == ({"weight", "bias"} if bias else {"weight"})


def test_the_matrix_is_the_weight_and_a_map_with_a_bias_has_none():
    model = dense((4,), (2, 3)).build()
    params = random_params(model)
    np.testing.assert_array_equal(call(model, params, method="matrix")[0], params["weight"])
    biased = dense((4,), (2, 3), bias=True).build(path="key_up")
    with pytest.raises(ModuleError) as e:
        call(biased, random_params(biased), method="matrix")
    want = "key_up (DenseLinear) is asked for its matrix, but it also adds a bias. Set bias=False."
    assert str(e.value) == want


def test_specs_carry_shapes_axes_and_fans():
    spec = specs(dense((2, 3), (4, 5, 6), bias=True).build())
    assert (spec["weight"].shape, spec["weight"].axes) == ((2, 3, 4, 5, 6), ("a", "b", "a", "b", "c"))
    assert (spec["weight"].fan_in, spec["weight"].fan_out) == (6, 120)
    assert (spec["bias"].shape, spec["bias"].axes) == ((4, 5, 6), ("a", "b", "c"))


def test_outputs_have_unit_variance_at_the_start_and_a_bias_of_zero():
    params = init(dense((8, 8), (16, 16), bias=True).build(), jax.random.key(0))
    np.testing.assert_array_equal(params["bias"], 0)
    # The variance of 16384 normal numbers is off by 1 %, as one standard deviation; truncation is made up for.
    np.testing.assert_allclose(np.var(params["weight"]) * 64, 1, atol=0.05)


def test_the_initial_value_can_be_chosen():
    chosen = dense((4,), (3,), init=config_for(constant, value=2.0))
    np.testing.assert_array_equal(init(chosen.build(), jax.random.key(0))["weight"], 2)
    wide = dense((64,), (64,), init=config_for(normal, stddev=3.0)).build()
    np.testing.assert_allclose(np.std(init(wide, jax.random.key(0))["weight"]), 3, rtol=0.05)  # 4096 draws: 1 %.


def test_what_the_parent_must_set_is_named():
    with pytest.raises(ConfigError) as e:
        DenseLinear.Config(bias=True).build(path="ffn.up")
    assert str(e.value) == (
        "DenseLinear.Config: 4 required fields are not set:\n"
        "  ffn.up.in_shape: tuple[int, ...]\n"
        "  ffn.up.out_shape: tuple[int, ...]\n"
        "  ffn.up.in_axes: tuple[str | None, ...]\n"
        "  ffn.up.out_axes: tuple[str | None, ...]\n"
        "  Set them, as in cfg.set_in('ffn.up.in_shape', ...)."
    )
