# SPDX-License-Identifier: Apache-2.0
"""Predictions that runs of one's own correct."""

import math

import pytest

from dovetail.hardware import hardware
from dovetail.plan import Observed, calibrated, on_hardware, predict
from dovetail.zoo import recipe

ON = hardware("gpu-h100-64")
CFG = on_hardware(recipe("llama3-8b"), ON.name)
OTHER = on_hardware(recipe("llama2-7b"), ON.name)
PLAIN = predict(CFG, ON)


def run(cfg, slower):
    return Observed("runs/mine", cfg, ON, slower * predict(cfg, ON).step_seconds)


def test_a_run_of_the_same_kind_corrects_nearly_in_full():
    found, how = calibrated(PLAIN, CFG, ON, [run(CFG, 1.3)])
    assert 1.25 < how.factor < 1.3
    assert found.step_seconds == pytest.approx(how.factor * PLAIN.step_seconds)
    assert math.isclose(sum(found.breakdown.values()), found.step_seconds)
    assert found.mfu == pytest.approx(PLAIN.mfu / how.factor)


def test_a_run_of_another_model_corrects_a_little():
    same, other = (calibrated(PLAIN, CFG, ON, [run(cfg, 1.3)])[1].factor for cfg in (CFG, OTHER))
    assert 1.02 < other < same


def test_the_interval_narrows_with_what_is_known():
    def width(found):
        return found.interval[1] / found.interval[0]

    same, other = (calibrated(PLAIN, CFG, ON, [run(cfg, 1.0)])[0] for cfg in (CFG, OTHER))
    assert width(same) < width(other) < width(PLAIN)
    assert same.step_seconds == pytest.approx(PLAIN.step_seconds)


def test_the_correction_is_said():
    found, _ = calibrated(PLAIN, CFG, ON, [run(CFG, 2.0)])
    assert found.assumptions[-1].startswith("all times are multiplied by 1.9")
    assert "after 1 of your runs: runs/mine took" in found.assumptions[-1]
