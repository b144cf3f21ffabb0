# SPDX-License-Identifier: Apache-2.0
"""Predictions that runs of one's own correct."""

import functools
import math

import pytest

from dovetail.hardware import hardware
from dovetail.plan import Observed, calibrated, on_hardware, predict
from dovetail.zoo import recipe

ON = hardware("gpu-h100-64")
SAME, OTHER = "llama3-8b", "llama2-7b"


@functools.cache
def config(name):
    return on_hardware(recipe(name), ON.name)


@functools.cache
def plain():
    return predict(config(SAME), ON)


def correct(factor, name=SAME):
    """Corrects the prediction for one model by a run of one that took so much longer than predicted."""
    return calibrated(plain(), config(SAME), ON, [run(config(name), factor)])


def run(cfg, slower):
    return Observed("runs/mine", cfg, ON, slower * predict(cfg, ON).step_seconds)


def test_a_run_of_the_same_kind_corrects_nearly_in_full():
    found, how = correct(1.3)
    assert 1.25 < how.factor < 1.3
    assert found.step_seconds == pytest.approx(how.factor * plain().step_seconds)
    assert math.isclose(sum(found.breakdown.values()), found.step_seconds)
    assert found.mfu == pytest.approx(plain().mfu / how.factor)


def test_a_run_of_another_model_corrects_a_little():
    same, other = (correct(1.3, name)[1].factor for name in (SAME, OTHER))
    assert 1.02 < other < same


def test_the_interval_narrows_with_what_is_known():
    def width(found):
        return found.interval[1] / found.interval[0]

    same, other = (correct(1.0, name)[0] for name in (SAME, OTHER))
    assert width(same) < width(other) < width(plain())
    assert same.step_seconds == pytest.approx(plain().step_seconds)


def test_the_correction_is_said():
    found, _ = correct(2.0)
    assert found.assumptions[-1].startswith("all times are multiplied by 1.9")
    assert "after 1 of your runs: runs/mine took" in found.assumptions[-1]
