# SPDX-License-Identifier: Apache-2.0
"""LoRA adds to each expert a product of two thin matrices of its own, and nothing at the start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import call, init, specs
from dovetail.nn import DenseGroupedLinear, LoRAGroupedLinear
from support.models import random_params
from support.numeric import check, normal

ENDS = {"num_experts": 3, "in_dim": 4, "out_dim": 6, "in_axis": "embed", "out_axis": "mlp"}
SIZES, OWNERS = jnp.array([2, 0, 3]), [0, 0, 2, 2, 2]


@pytest.mark.parametrize("sorted_rows", [True, False], ids=["sorted rows", "a dimension for the experts"])
def test_it_is_the_inner_map_plus_a_scaled_product_of_the_expert(sorted_rows):
    model = LoRAGroupedLinear.Config(rank=2, alpha=6.0, **ENDS).build()

    def definition(p, x):
        owners = OWNERS if sorted_rows else range(3)
        matrices = p["inner"]["weight"] + 3.0 * p["lora_a"] @ p["lora_b"]
        return np.stack([row @ matrices[e] for row, e in zip(x, owners, strict=True)])

    x, sizes = normal(1, (5, 4) if sorted_rows else (3, 2, 4)), SIZES if sorted_rows else None
    check(lambda p, x: call(model, p, x, sizes)[0], definition, random_params(model), x)


def test_at_the_start_it_is_the_inner_map():
    inner = DenseGroupedLinear.Config(bias=True)
    model, alone = LoRAGroupedLinear.Config(inner=inner, **ENDS).build(), inner.set(**ENDS).build()
    params, x = init(model, jax.random.key(0)), normal(1, (5, 4))
    assert np.any(params["lora_a"])
    np.testing.assert_array_equal(call(model, params, x, SIZES)[0], call(alone, params["inner"], x, SIZES)[0])


def test_specs_carry_axes_and_fans():
    spec = specs(LoRAGroupedLinear.Config(rank=2, **ENDS).build())
    a, b = spec["lora_a"], spec["lora_b"]
    assert (a.shape, a.axes, a.fan_in, a.fan_out) == ((3, 4, 2), ("expert", "embed", None), 4, 2)
    assert (b.shape, b.axes, b.fan_in, b.fan_out) == ((3, 2, 6), ("expert", None, "mlp"), 2, 6)


def test_a_rank_below_one_is_refused():
    with pytest.raises(ConfigError, match=r"^up \(LoRAGroupedLinear\): rank is 0, expected at least 1\.$"):
        LoRAGroupedLinear.Config(rank=0, **ENDS).build(path="up")
