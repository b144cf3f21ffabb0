# SPDX-License-Identifier: Apache-2.0
"""A combination works, or the reason is found: each kind of failure is planted here."""

import dataclasses

import pytest

from dovetail.aot import count_flops
from dovetail.config import modify, replace_all
from dovetail.loc._trials import TRIALS
from dovetail.loc._works import ROWS, TOKENS, built, other_problems, size_problems
from dovetail.nn import Attention, RoPE
from dovetail.zoo import model

YARN = TRIALS["rope"].variants["yarn"]
MODELS = {name: built(model(f"{name}-tiny")) for name in ("gpt2", "gemma3", "olmo2", "hybrid", "deepseek-v3")}


def found(trial, variant, name, modifier=None):
    before = MODELS[name]
    after = built((modifier or trial.modifier)(before.cfg, trial.variants[variant]))
    return [*size_problems(trial, trial.variants[variant], before, after), *other_problems(before, after)]


@pytest.mark.parametrize(
    "feature, variant, name",
    [(feature, variant, "olmo2") for feature, trial in TRIALS.items() for variant in trial.variants]
    + [
        ("rope", "partial-yarn", "gemma3"),
        ("moe", "shared", "gpt2"),
        ("moe", "loss-free", "deepseek-v3"),
        ("norm", "layer", "gpt2"),
        ("norm", "rms-plain", "gpt2"),
        ("attention", "multi-query", "gpt2"),
        ("attention", "qk-norm", "gemma3"),
        ("attention", "gated", "hybrid"),
        ("lora", "rank-8", "deepseek-v3"),
        ("quantised", "int8-mixer", "hybrid"),
        ("quantised", "float8", "deepseek-v3"),
    ],
)
def test_every_variant_works(feature, variant, name):
    assert found(TRIALS[feature], variant, name) == []


def test_a_wrong_number_of_parameters_is_found():
    """As if the formula, or the feature, forgot the router."""
    trial = TRIALS["moe"]
    wrong = dataclasses.replace(trial, added=lambda before, new: trial.added(before, new) - 1)
    (problem,) = found(wrong, "8", "olmo2")
    assert "parameters, expected" in problem


def test_a_place_that_was_missed_is_found():
    def only_first(cfg, new):
        return replace_all(RoPE.Config, new, at="stack.layer[0].*")(cfg)

    (problem,) = found(TRIALS["rope"], "yarn", "gemma3", only_first)
    assert problem.startswith("the feature is not at stack.layer[1].mixer.rotary, nor at ")


def test_work_that_does_not_follow_from_the_matrices_is_found(monkeypatch):
    """As if rotary positions took one product of numbers more for each token."""
    before = built(MODELS["olmo2"].cfg)
    after = built(TRIALS["rope"].modifier(before.cfg, YARN))
    expected = before.products
    monkeypatch.setattr("dovetail.loc._works.count_flops", lambda *args: count_flops(*args) + 2 * ROWS * TOKENS)
    problems = list(other_problems(before, after))
    assert problems == [f"{expected + 1:,.0f} products per token, expected {expected:,.0f}"]


def test_a_model_of_which_a_part_is_not_computed_is_found(monkeypatch):
    monkeypatch.setattr("dovetail.loc._works.count_flops", lambda *args: count_flops(*args) // 2)
    before = built(MODELS["olmo2"].cfg)
    (problem,) = other_problems(before, built(TRIALS["rope"].modifier(before.cfg, YARN)))
    assert problem.startswith("even without the feature, ")


def test_a_mesh_that_the_model_no_longer_fits_on_is_found():
    def odd(cfg, fields):
        return modify(Attention.Config, lambda old: old.set(num_heads=3, num_kv_heads=3, head_dim=22))(cfg)

    trial = dataclasses.replace(TRIALS["attention"], shows=lambda *_: True, added=lambda before, _: odd_size - size)
    size = MODELS["olmo2"].size
    odd_size = built(odd(MODELS["olmo2"].cfg, None)).size
    assert any("does not fit" in problem for problem in found(trial, "window", "olmo2", odd))
