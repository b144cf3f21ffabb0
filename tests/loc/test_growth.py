# SPDX-License-Identifier: Apache-2.0
"""The harness: what is constant comes out constant, what grows is seen to grow, and what fails is listed."""

import dataclasses
from functools import partial

import pytest

from dovetail.config import ConfigError, replace_all
from dovetail.loc.growth import TRIALS, Base, grow, grow_classical
from dovetail.nn import RoPE, YaRN
from dovetail.zoo import RECIPES, model

NAMES = ("llama3-tiny", "mistral-tiny", "qwen2.5-tiny", "qwen3-tiny")
BASES = [Base(name, RECIPES[name].family, partial(model, name)) for name in NAMES]
ROPE = dataclasses.replace(
    TRIALS["rope"], variants={name: TRIALS["rope"].variants[name] for name in ("plain", "yarn", "linear", "none")}
)


def run(trial, **options):
    return grow(BASES, trials={"rope": trial}, **{"models": 4, "experiments": 4, "trained": 0, **options})


def for_each_model(cfg, new):
    """A modifier that knows models: it has a function for each."""
    return {0: _small, 1: _large}[cfg.vocab_size % 512 // 256](cfg, new)


def _small(cfg, new):
    kinds = (type(node) for node in [RoPE.Config(), YaRN.Config(factor=1.0, original_length=1)])
    return TRIALS["rope"].modifier(cfg, new) if list(kinds) else cfg


def _large(cfg, new):
    return TRIALS["rope"].modifier(cfg, new)


def for_each_variant(cfg, new):
    """A modifier that knows variants: it has a function for each."""
    name = type(new).__qualname__.removesuffix(".Config")
    return {"RoPE": _small, "YaRN": _large}.get(name, TRIALS["rope"].modifier)(cfg, new)


def test_a_modifier_that_knows_neither_is_constant():
    report = run(ROPE)
    rope = report.features["rope"]
    assert rope.lines == 2
    assert rope.growth.models == rope.growth.variants == (0, 0, 0)
    assert (rope.models, rope.variants, len(report.experiments), report.failures) == (4, 4, 16, [])


def test_a_modifier_with_a_function_for_each_model_is_seen_to_grow():
    rope = run(dataclasses.replace(ROPE, modifier=for_each_model)).features["rope"]
    assert rope.growth.models.high > 0.1
    assert rope.growth.variants == (0, 0, 0)


def test_a_modifier_with_a_function_for_each_variant_is_seen_to_grow():
    rope = run(dataclasses.replace(ROPE, modifier=for_each_variant)).features["rope"]
    assert rope.growth.variants.high > 0.1
    assert rope.growth.models == (0, 0, 0)


def test_combinations_that_do_not_work_are_listed_with_the_reason():
    def broken(cfg, new):
        if isinstance(new, YaRN.Config):
            raise ConfigError("no.\nMore.")
        return TRIALS["rope"].modifier(cfg, new)

    report = run(dataclasses.replace(ROPE, modifier=broken))
    assert report.features["rope"].failed == len(report.failures) == 4
    assert str(report.failures[0]).endswith(": ConfigError: no.")
    assert report.as_json()["failures"] == [str(each) for each in report.failures]

    def half(cfg, new):
        return replace_all(RoPE.Config, new, drop="unplaced", missing="ok")(cfg)

    report = run(dataclasses.replace(ROPE, modifier=half))
    assert {each.model.partition(",")[0] for each in report.failures} == {"llama3-tiny"}  # Its rotary is another one.


def test_classical_designs_grow():
    found = grow_classical(models=4, draws=1)
    assert found["flat"]["moe"].growth.models == (0, 0, 0)
    assert found["flat"]["moe"].growth.variants.value == pytest.approx(1, abs=0.2)
    for name in ("rope", "moe"):
        assert found["subclass"][name].growth.models.value == pytest.approx(1)
        assert found["subclass"][name].growth.variants.value == pytest.approx(1)
        assert found["subclass"][name].lines == 3 * 4 * 8


def test_json_has_lines_and_exponents_of_each_feature():
    data = run(ROPE).as_json()
    assert (
        data["features"]["rope"]
        | {
            "lines": 2,
            "exponent_models": 0.0,
            "exponent_variants": 0.0,
            "models": 4,
            "variants": 4,
            "combinations": 16,
            "experiments": 4,
            "failed": 0,
        }
        == data["features"]["rope"]
    )
    assert [4, 4, 2.0] in data["features"]["rope"]["points"]
    assert (data["combinations"], data["experiments"], data["trained"]) == (16, 4, 0)
    assert (data["models_in_pool"], data["models_drawn"]) == (64, 4)


def test_only_some_combinations_are_checked_in_full(monkeypatch):
    """A problem that only the full check sees is found in as many as were asked for, and they come first."""
    monkeypatch.setattr("dovetail.loc.growth.other_problems", lambda before, after: ["no."])
    report = run(ROPE, experiments=8)
    assert [experiment.depth for experiment in report.experiments] == 8 * ["checked"] + 8 * ["built"]
    assert len(report.failures) == report.count("checked") == 8
    assert report.count("built") == 16


def test_more_models_than_there_are_cannot_be_asked_for():
    with pytest.raises(ConfigError, match="rope: there are only 64 models for it, expected 65: ask for fewer"):
        run(ROPE, models=65)
    with pytest.raises(ConfigError, match="rope: there are only 64 models for it, expected 250: ask for fewer"):
        run(ROPE, experiments=1000)


@pytest.mark.slow
def test_a_small_model_with_experts_trains_on_two_meshes():
    moe = dataclasses.replace(TRIALS["moe"], variants={"8": TRIALS["moe"].variants["8"]})
    report = grow(BASES[:1], trials={"moe": moe}, models=1, experiments=1)
    assert report.count("trained") == 1
    assert report.failures == []
