# SPDX-License-Identifier: Apache-2.0
"""ALiBi lowers scores with the distance, in each head by the slope of the paper, and needs no parameters."""

import jax.numpy as jnp
import numpy as np

from dovetail.module import call, specs
from dovetail.nn import ALiBi


def test_alibi_is_a_slope_for_each_head():
    model = ALiBi.Config(num_heads=3).build()
    assert specs(model) == {}
    bias = call(model, {})[0](jnp.array([[[2, 0, -1]]]))
    want = [[[-2 * slope, 0, -slope]] for slope in (2**-4, 2**-8, 2**-2)]
    np.testing.assert_array_equal(bias[0], want)
