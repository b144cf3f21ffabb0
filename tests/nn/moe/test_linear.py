# SPDX-License-Identifier: Apache-2.0
"""A grouped linear map is a linear map for each expert, whether rows are sorted or in a dimension of their own."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.module import call, specs
from dovetail.nn import DenseGroupedLinear
from dovetail.ops import RaggedDot
from support import reference
from support.compare import assert_same
from support.models import random_params
from support.numeric import check, normal

ENDS = {"num_experts": 3, "in_dim": 4, "in_axis": "embed", "out_dim": 5, "out_axis": "mlp"}
SIZES = [2, 0, 3]


@pytest.mark.parametrize("bias", [False, True])
def test_each_row_goes_through_the_map_of_its_expert(bias):
    model = DenseGroupedLinear.Config(bias=bias, **ENDS).build()

    def definition(p, x):
        owner = np.repeat(np.arange(3), SIZES)
        rows = [reference.linear({name: value[e] for name, value in p.items()}, x[i]) for i, e in enumerate(owner)]
        return np.stack(rows)

    check(lambda p, x: call(model, p, x, jnp.array(SIZES))[0], definition, random_params(model), normal(1, (5, 4)))


@pytest.mark.parametrize("bias", [False, True])
def test_as_many_rows_for_each_expert_need_no_sizes(bias):
    model = DenseGroupedLinear.Config(bias=bias, **ENDS).build()
    params, x = random_params(model), normal(1, (3, 2, 4))
    flat, _ = call(model, params, x.reshape(6, 4), jnp.array([2, 2, 2]))
    assert_same(call(model, params, x, None)[0], flat.reshape(3, 2, 5))


def test_any_kernel_gives_the_same():
    cfg = DenseGroupedLinear.Config(**ENDS)
    params = random_params(cfg.build())
    args = params, normal(1, (5, 4)), jnp.array(SIZES)
    assert_same(call(cfg.set(kernel=RaggedDot.Config()).build(), *args)[0], call(cfg.build(), *args)[0])


def test_the_experts_are_an_axis_and_no_part_of_the_fans():
    spec = specs(DenseGroupedLinear.Config(bias=True, **ENDS).build())
    assert (spec["weight"].axes, spec["bias"].axes) == (("expert", "embed", "mlp"), ("expert", "mlp"))
    assert (spec["weight"].fan_in, spec["weight"].fan_out) == (4, 5)
    assert spec["bias"].in_dims == spec["bias"].out_dims == ()
