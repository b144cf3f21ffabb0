# SPDX-License-Identifier: Apache-2.0
"""Gated activations are their formulas."""

import jax
import numpy as np

from dovetail.ops import clamped_swiglu, gated
from support import reference
from support.numeric import check, normal

GATE, UP = normal(0, (40,), size=5.0), normal(1, (40,), size=5.0)


def test_gated_is_the_activation_of_the_gate_times_the_rest():
    check(gated(), lambda gate, up: reference.silu(gate) * up, GATE, UP)
    check(gated(jax.nn.gelu), lambda gate, up: reference.gelu(gate) * up, GATE, UP)


def test_clamped_swiglu_clamps_the_gate_from_above_and_the_rest_on_both_sides():
    assert (GATE > 7).any()
    assert (GATE < -7).any()
    assert (abs(UP) > 7).any()

    def definition(gate, up, alpha=1.702, limit=7.0):
        gate = np.where(gate > limit, limit, gate)
        up = np.where(up > limit, limit, np.where(up < -limit, -limit, up))
        return gate / (1 + np.exp(-alpha * gate)) * (up + 1)

    check(clamped_swiglu(), definition, GATE, UP)
    check(clamped_swiglu(1.0, 3.0), lambda gate, up: definition(gate, up, 1.0, 3.0), GATE, UP)
