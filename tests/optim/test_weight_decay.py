# SPDX-License-Identifier: Apache-2.0
"""Decay rates by spec and by pattern."""

import math

import pytest

from dovetail.config import ConfigError, from_json, override, to_json
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


def test_patterns_set_the_rate_of_what_they_fit(specs):
    cfg = WeightDecay.Config(rate=0.2, overrides={"embedding.*": 0.1, "*.query.*": 0.0})
    rates = by_path(cfg.build().rates(specs))
    assert {path for path, rate in rates.items() if rate == 0.2} == {"head.weight", "layer.experts.weight", "up.weight"}
    assert rates["embedding.table"] == 0.1


def test_overrides_survive_json_and_the_command_line():
    cfg = WeightDecay.Config(overrides={"a.*": 0.1})
    assert from_json(to_json(cfg)) == cfg
    assert override(cfg, ["overrides['a.*']=0.3"]).overrides == {"a.*": 0.3}


def test_a_pattern_that_fits_nothing_is_an_error(specs):
    with pytest.raises(ConfigError) as e:
        WeightDecay.Config(overrides={"layer.norm.scales": 0.0}).build(path="learner.weight_decay").rates(specs)
    assert str(e.value) == (
        "learner.weight_decay (WeightDecay): overrides: 'layer.norm.scales' fits no parameter. Nearest are:\n"
        "    layer.norm.scale\n"
        "    layer.experts.weight\n"
        "    layer.attention.query.bias\n"
        "  A pattern is compared with the whole path; * stands for any characters."
    )


def test_patterns_that_disagree_are_an_error(specs):
    cfg = WeightDecay.Config(overrides={"up.*": 0.0, "*.weight": 0.1})
    with pytest.raises(ConfigError) as e:
        cfg.build().rates(specs)
    assert str(e.value) == (
        "(root) (WeightDecay): overrides 'up.*' (0.0) and '*.weight' (0.1) both fit up.weight.\n"
        "  Make one of them narrower."
    )
    assert by_path(cfg.set(overrides={"up.*": 0.1, "*.weight": 0.1}).build().rates(specs))["up.weight"] == 0.1


@pytest.mark.parametrize(
    "cfg, message",
    [
        (WeightDecay.Config(rate=-0.1), "(root) (WeightDecay): rate is -0.1, expected at least 0."),
        (
            WeightDecay.Config(overrides={"*": math.nan}),
            "(root) (WeightDecay): overrides is {'*': nan}, expected rates of at least 0.",
        ),
    ],
)
def test_out_of_range_is_refused_when_built(cfg, message):
    with pytest.raises(ConfigError) as e:
        cfg.build()
    assert str(e.value) == message
