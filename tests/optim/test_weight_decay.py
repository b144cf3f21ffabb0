# SPDX-License-Identifier: Apache-2.0
"""Decay rates by spec."""

import pytest

from dovetail.config import ConfigError
from dovetail.optim import WeightDecay
from dovetail.optim._groups import by_path


def test_matrices_decay_and_nothing_else(specs):
    rates = by_path(WeightDecay.Config(rate=0.2).build().rates(specs))
    assert rates == {
        "embedding.table": 0.0,
        "head.weight": 0.2,
        "layer.attention.query.bias": 0.0,
        "layer.attention.query.weight": 0.2,
        "layer.experts.weight": 0.2,
        "layer.norm.scale": 0.0,
        "up.weight": 0.2,
    }


def test_out_of_range_is_refused_when_built():
    with pytest.raises(ConfigError) as e:
        WeightDecay.Config(rate=-0.1).build()
    assert str(e.value) == "(root) (WeightDecay): rate is -0.1, expected at least 0."
