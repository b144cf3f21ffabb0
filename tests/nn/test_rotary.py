# SPDX-License-Identifier: Apache-2.0
"""Rotary layers turn queries and keys by their positions, or leave them."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import call, specs
from dovetail.nn import NoRotary, RoPE
from support import reference
from support.numeric import BFLOAT16, FLOAT32, check, normal

POSITIONS = jnp.array([[0, 1, 2], [5, 0, 1]])


# The result is rounded once.
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 2 * BFLOAT16)])
@pytest.mark.parametrize("theta", [10_000.0, 500.0])
def test_rope_is_its_definition(theta, dtype, tolerance):
    model = RoPE.Config(head_dim=6, theta=theta).build()
    assert specs(model) == {}

    def definition(x):
        return reference.rotate(x, np.asarray(POSITIONS), theta)

    x = normal(0, (2, 3, 2, 6), dtype)
    got = check(lambda x: call(model, {}, x, POSITIONS)[0], definition, x, tolerance=tolerance)
    assert got.dtype == dtype


def test_no_rotary_changes_nothing():
    x = normal(0, (2, 3, 2, 5))
    model = NoRotary.Config(head_dim=5).build()
    assert call(model, {}, x, POSITIONS)[0] is x


def test_an_odd_head_dim_is_refused():
    with pytest.raises(ConfigError) as e:
        RoPE.Config(head_dim=5).build(path="stack.layer.mixer.rotary")
    assert str(e.value) == "stack.layer.mixer.rotary (RoPE): head_dim is 5, expected an even number."
