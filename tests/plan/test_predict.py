# SPDX-License-Identifier: Apache-2.0
"""Predictions: what has to hold of any, and published steps of dense models."""

import math

import pytest

from dovetail.config import ConfigError, replace_all
from dovetail.hardware import hardware
from dovetail.nn import FeedForward, MoEFeedForward
from dovetail.plan import Prediction, on_hardware, predict
from dovetail.zoo import recipe


def predicted(name: str, on: str, **changes: object) -> Prediction:
    cfg = on_hardware(recipe(name), on)
    return predict(cfg.set(**changes) if changes else cfg, hardware(on))


# Of AXLearn, arXiv 2507.05411: 4M tokens of 4,096 each.
# Their layout is not published; they had one microbatch. The mesh rules choose a faster layout for 70B.
@pytest.mark.parametrize(
    "name, on, layout, published",
    [
        ("llama2-7b", "tpu-v5p-512", {}, 2.5),
        ("llama2-7b", "gpu-h100-256", {}, 1.4),
        ("llama2-70b", "tpu-v5p-1024", {"remat": "save_qkvo", "num_microbatches": 1}, 11.6),
        ("llama2-70b", "gpu-h100-512", {"remat": "full", "num_microbatches": 1}, 9.2),
    ],
)
def test_published_steps_of_dense_models_lie_in_or_near_the_interval(name, on, layout, published):
    found = predicted(name, on, **layout)
    assert abs(found.step_seconds / published - 1) < 0.2
    assert found.interval[0] < found.step_seconds < found.interval[1]


@pytest.mark.parametrize("name", ["llama2-7b", "qwen3-30b-a3b", "deepseek-v3", "mamba2-2.7b"])
@pytest.mark.parametrize("on", ["tpu-v5p-512", "gpu-b200-256", "trn2-64"])
def test_the_breakdown_adds_up_for_any_kind_of_layer_and_chip(name, on):
    found = predicted(name, on)
    assert math.isclose(sum(found.breakdown.values()), found.step_seconds)
    assert min(found.breakdown.values()) > 0
    assert 0 < found.mfu < 1


def test_twice_the_batch_takes_less_than_twice_the_time_and_costs_less():
    cfg = on_hardware(recipe("llama2-7b"), "gpu-h100-256")
    once, twice = (
        predict(cfg.set(input=cfg.input.set(batch_size=n * cfg.input.batch_size)), hardware("gpu-h100-256"))
        for n in (1, 2)
    )
    assert once.step_seconds < twice.step_seconds < 2 * once.step_seconds
    assert (twice.cost_per_trillion_units or 0) < (once.cost_per_trillion_units or 0)


def test_what_is_computed_again_takes_time():
    times = [
        predicted("llama2-7b", "tpu-v5p-512", remat=policy).step_seconds
        for policy in ("save_all", "save_dots", "save_qkvo", "full")
    ]
    assert times == sorted(times)
    assert len(set(times)) == 4


def test_a_model_that_is_edited_is_predicted_by_the_same_code():
    dense = recipe("llama2-7b")
    experts = MoEFeedForward.Config(num_experts=8)
    sparse = replace_all(FeedForward.Config, experts)(dense)
    before, after = (predict(on_hardware(cfg, "gpu-h100-256"), hardware("gpu-h100-256")) for cfg in (dense, sparse))
    assert after.step_seconds > before.step_seconds
    assert "exposed, expert" in after.breakdown
    assert "exposed, expert" not in before.breakdown


def test_a_chip_without_published_steps_says_so():
    assert any("no published step" in each for each in predicted("llama2-7b", "gpu-mi300x-256").assumptions)


def test_a_chip_without_figures_is_refused():
    with pytest.raises(ConfigError, match="cpu-1: the peak of CPU or the bandwidth of its memory is not known"):
        predict(recipe("tiny-lm"), hardware("cpu-1"))
