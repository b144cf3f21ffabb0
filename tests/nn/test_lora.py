# SPDX-License-Identifier: Apache-2.0
"""LoRA adds a product of two thin matrices to any linear map, and nothing at the start."""

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, replace_all
from dovetail.module import call, init, specs
from dovetail.nn import DenseLinear, Int8Linear, Linear, LoRALinear
from support import reference
from support.models import lm, random_params
from support.numeric import check, normal

SHAPES = {"in_shape": (2, 3), "out_shape": (4, 5), "in_axes": ("a", "b"), "out_axes": ("c", "d")}


def test_it_is_the_inner_map_plus_a_scaled_product():
    model = LoRALinear.Config(rank=3, alpha=6.0, inner=DenseLinear.Config(bias=True), **SHAPES).build()

    def definition(params, x):
        product = np.tensordot(params["lora_a"], params["lora_b"], 1)
        return reference.linear(params["inner"], x, num_in=2) + 2.0 * np.tensordot(x, product, 2)

    check(lambda params, x: call(model, params, x)[0], definition, random_params(model), normal(1, (7, 2, 3)))


def test_the_matrix_is_that_of_the_whole_map():
    model = LoRALinear.Config(**SHAPES).build()
    params, x = random_params(model), normal(1, (7, 2, 3))
    matrix = call(model, params, method="matrix")[0]
    np.testing.assert_allclose(np.tensordot(x, matrix, 2), call(model, params, x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inner", [DenseLinear.Config(bias=True), Int8Linear.Config()])
def test_at_the_start_it_is_the_inner_map(inner):
    model, alone = LoRALinear.Config(inner=inner, **SHAPES).build(), inner.set(**SHAPES).build()
    params, x = init(model, jax.random.key(0)), normal(1, (7, 2, 3))
    assert np.any(params["lora_a"])
    np.testing.assert_array_equal(call(model, params, x)[0], call(alone, params["inner"], x)[0])


def test_specs_carry_axes_and_fans():
    spec = specs(LoRALinear.Config(rank=2, **SHAPES).build())
    a, b = spec["lora_a"], spec["lora_b"]
    assert (a.shape, a.axes, a.fan_in, a.fan_out) == ((2, 3, 2), ("a", "b", None), 6, 2)
    assert (b.shape, b.axes, b.fan_in, b.fan_out) == ((2, 4, 5), (None, "c", "d"), 2, 20)


def test_every_linear_map_of_a_model_gets_one_and_keeps_its_own_config():
    biased = replace_all(DenseLinear.Config, lambda old: old.set(bias=True))(lm())
    adapted = replace_all(Linear.Config, lambda old: LoRALinear.Config(rank=2, inner=old))(biased)
    tree = specs(adapted.build())
    assert set(tree["head"]) == {"lora_a", "lora_b", "inner"}
    assert set(tree["stack"]["layer"]["mixer"]["query"]["inner"]) == {"weight", "bias"}


def test_a_rank_below_one_is_refused():
    with pytest.raises(ConfigError) as e:
        LoRALinear.Config(rank=0, **SHAPES).build(path="query")
    assert str(e.value) == "query (LoRALinear): rank is 0, expected at least 1."
