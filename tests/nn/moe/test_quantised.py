# SPDX-License-Identifier: Apache-2.0
"""Maps of experts in few bits are, for each expert, the linear map in few bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import replace_all
from dovetail.module import call
from dovetail.nn import DenseGroupedLinear, QuantisedGroupedLinear, QuantisedLinear, quantised_params
from dovetail.ops import RaggedDot
from support.models import random_params
from support.numeric import FLOAT32, assert_close, float64, normal

ENDS = {"num_experts": 3, "in_dim": 16, "in_axis": "embed", "out_dim": 5, "out_axis": "mlp"}
DENSE = DenseGroupedLinear.Config(bias=True, **ENDS)
ONE = {"in_shape": (16,), "in_axes": ("embed",), "out_shape": (5,), "out_axes": ("mlp",)}
SIZES = [4, 0, 3]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kernel", [DENSE.kernel, RaggedDot.Config()], ids=["blocks", "a copy"])
def test_each_expert_is_a_linear_map_in_few_bits(bits, kernel):
    few = {"bits": bits, "group": 8}
    to_few = replace_all(DenseGroupedLinear.Config, QuantisedGroupedLinear.Config(**few), drop=("init",))
    grouped, alone = to_few(DENSE.set(kernel=kernel)).build(), QuantisedLinear.Config(bias=True, **few, **ONE).build()
    params = random_params(DENSE.build())
    stored, x = quantised_params(grouped, params), normal(1, (3, 4, 16))

    def wanted(expert, rows):
        mine = quantised_params(alone, {name: value[expert] for name, value in params.items()})
        jax.tree.map(np.testing.assert_array_equal, mine, {name: value[expert] for name, value in stored.items()})
        return float64(call(alone, mine, rows)[0])

    rows = jnp.concatenate([x[0], x[2, :3]])
    got = jax.jit(lambda p, x: call(grouped, p, x, jnp.array(SIZES))[0])(stored, rows)
    assert_close(got, np.concatenate([wanted(0, x[0]), wanted(2, x[2, :3])]), FLOAT32)
    apart = jax.jit(lambda p, x: call(grouped, p, x, None)[0])(stored, x)
    assert_close(apart, np.stack([wanted(expert, x[expert]) for expert in range(3)]), FLOAT32)
