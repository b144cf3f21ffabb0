# SPDX-License-Identifier: Apache-2.0
"""Features as data: what is shipped, what is found, and what is refused."""

import re
from pathlib import Path

import pytest

from dovetail.config import ConfigError
from dovetail.loc._trials import TRIALS
from dovetail.loc.description import describe, load, shipped

ROOT = Path(__file__).resolve().parents[2]


def test_ours_and_five_others_are_shipped():
    assert shipped() == ["axlearn", "dovetail", "levanter", "maxtext", "megatron", "torchtitan"]
    for name in shipped():
        description = load(name)
        assert {"rope", "moe"} <= description.features.keys()
        assert all(feature.home for feature in description.features.values())
        if name != "dovetail":
            assert description.commit
            assert all(feature.recorded.keys() == {"files", "lines"} for feature in description.features.values())


def test_every_feature_of_ours_has_a_budget_and_those_that_are_tried_one_for_their_modifier():
    features = load("dovetail").features
    assert all(feature.budget is not None for feature in features.values())
    assert {name for name, feature in features.items() if feature.modifier} == features.keys() & TRIALS.keys()
    assert features["rope"].modifier_budget == features["moe"].modifier_budget == 10


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize(
    "feature, line, found",
    [
        ("rope", "x = property(europe)", False),
        ("rope", "cfg = cfg.set(use_mrope=True)", True),
        ("rope", "q = apply_rotary_emb(q)", True),
        ("rope", "YaRN.Config()", True),
        ("rope", "from .rope import RoPE", True),
        ("moe", "moment = memoed", False),
        ("moe", "num_experts: int = 8", True),
        ("moe", "self.ffn = MoELayer()", True),
        ("moe", "if cfg.use_moe:", True),
    ],
)
def test_patterns_find_the_feature_and_not_other_words(name, feature, line, found):
    assert bool(load(name).features[feature].mentions.search(line)) == found


def test_a_repository_is_known_by_its_directories(tmp_path):
    assert describe(ROOT).name == "Dovetail"
    (tmp_path / "torchtitan").mkdir()
    assert describe(tmp_path).name == "TorchTitan"
    (tmp_path / "axlearn").mkdir()
    with pytest.raises(ConfigError, match=r"AXLearn and TorchTitan fit\. Name one with --description"):
        describe(tmp_path)


def test_a_checkout_and_an_unpacked_package_are_both_found(tmp_path):
    """Paths start at the first root that is there, and are given from the top of the repository."""
    (tmp_path / "checkout" / "src" / "maxtext").mkdir(parents=True)
    (tmp_path / "package" / "maxtext").mkdir(parents=True)
    checkout, package = (describe(tmp_path / name).located(tmp_path / name) for name in ("checkout", "package"))
    assert (checkout.source, package.source) == (("src/maxtext",), ("maxtext",))
    assert checkout.features["moe"].home == ("src/maxtext/layers/moe.py",)
    assert package.features["moe"].home == ("maxtext/layers/moe.py",)
    assert checkout.skip == package.skip  # Patterns that start with a star are for everywhere.
    assert checkout.located(tmp_path / "checkout") == checkout


def test_unknown_names_are_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(ConfigError, match=r"no description .maxtex.\. Did you mean .maxtext.\?"):
        load("maxtex")
    with pytest.raises(ConfigError, match=re.escape("AXLearn has no feature 'lora'. There are: rope, moe.")):
        load("axlearn").select(["lora"])
    with pytest.raises(ConfigError, match="none fits"):
        describe(tmp_path)


@pytest.mark.parametrize(
    "text", ["name =", "name = 'x'", "[features.a]\nhome = []\nmentions = ['(']", "[features.a]\nhom = []"]
)
def test_a_file_that_is_no_description_is_refused_by_name(text, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.toml: cannot be read as a description"):
        load(str(file))
