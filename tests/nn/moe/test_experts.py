# SPDX-License-Identifier: Apache-2.0
"""Experts are feed-forward layers side by side."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import config_for
from dovetail.module import call
from dovetail.nn import DenseExperts, DenseGroupedLinear, GatedExperts
from dovetail.ops import clamped_swiglu
from support import reference
from support.experts import expert
from support.models import random_params
from support.numeric import check, normal

SIZES, OWNERS = [2, 0, 3], [0, 0, 2, 2, 2]
FIELDS: dict[str, Any] = {"num_experts": 3, "dim": 4, "hidden_dim": 6}
BIASED = DenseGroupedLinear.Config(bias=True)


def clamped(p, x):
    gate, up = np.minimum(reference.linear(p["gate"], x), 0.5), np.clip(reference.linear(p["up"], x), -0.5, 0.5)
    return reference.linear(p["down"], gate / (1 + np.exp(-2 * gate)) * (up + 1))


def relu(p, x):
    return reference.linear(p["down"], np.maximum(reference.linear(p["up"], x), 0))


CASES = {
    "dense": (DenseExperts.Config(**FIELDS), reference.feed_forward),
    "dense, relu": (DenseExperts.Config(**FIELDS, activation=jax.nn.relu), relu),
    "gated, biased": (GatedExperts.Config(**FIELDS, gate=BIASED, up=BIASED, down=BIASED), reference.feed_forward),
    "clamped": (GatedExperts.Config(**FIELDS, activation=config_for(clamped_swiglu, alpha=2.0, limit=0.5)), clamped),
}


@pytest.mark.parametrize("case", CASES)
def test_each_row_goes_through_the_feed_forward_of_its_expert(case):
    cfg, function = CASES[case]
    model = cfg.build()

    def definition(p, x):
        return np.stack([expert(p, x[i], e, function) for i, e in enumerate(OWNERS)])

    check(lambda p, x: call(model, p, x, jnp.array(SIZES))[0], definition, random_params(model), normal(1, (5, 4)))
