# SPDX-License-Identifier: Apache-2.0
"""What would make a run faster, and where its time goes."""

import functools
import math

import pytest

from dovetail.config import override
from dovetail.hardware import hardware
from dovetail.plan import by_path, on_hardware, what_if
from dovetail.plan._cost import step_parts
from dovetail.plan._fast import Chips
from dovetail.plan._predict import run_of
from dovetail.plan._work import work_of
from dovetail.zoo import recipe


@functools.cache
def run(name, on):
    return on_hardware(recipe(name), on), hardware(on)


def seconds(cfg, hw):
    found = step_parts(work_of(cfg), run_of(cfg), Chips(hw).machine, Chips(hw).constants)
    return float(sum(found.values()))


def test_a_change_of_the_run_gains_what_its_overrides_gain():
    cfg, hw = run("llama2-7b", "gpu-h100-64")
    changes = [change for change in what_if(cfg, hw) if change.kind == "run"]
    assert len(changes) > 5
    for change in changes:
        changed = override(cfg, change.overrides)
        assert changed != cfg
        rows = changed.input.batch_size / cfg.input.batch_size
        assert math.isclose(seconds(changed, hw) / rows, change.seconds)
        assert math.isclose(change.gain, 1 - change.seconds / seconds(cfg, hw))


def test_changes_are_in_order_of_their_gain_and_faster_chips_gain():
    cfg, hw = run("qwen3-30b-a3b", "tpu-v5p-128")
    changes = what_if(cfg, hw)
    gains = [change.gain for change in changes]
    assert gains == sorted(gains, reverse=True)
    assert all(change.gain >= 0 for change in changes if change.kind == "chips")
    names = {change.name for change in changes}
    assert {
        "twice the peak",
        "perfect overlap of collectives",
        "products of many matrices at the speed of others",
    } <= names


def test_lighter_remat_gains_and_says_if_it_does_not_fit():
    cfg, hw = run("llama2-7b", "gpu-h100-64")
    lighter = next(change for change in what_if(cfg.set(remat="full"), hw) if change.name == "remat save_qkvo")
    assert lighter.gain > 0.05
    (kept,) = (change for change in what_if(cfg.set(remat="save_dots"), hw) if change.name == "remat save_all")
    assert not kept.fits


@pytest.mark.parametrize("name, on", [("llama2-7b", "gpu-h100-64"), ("qwen3-30b-a3b", "tpu-v5p-128")])
def test_the_time_by_path_adds_up_to_the_step(name, on):
    cfg, hw = run(name, on)
    paths = by_path(cfg, hw)
    assert math.isclose(sum(paths.values()), seconds(cfg, hw), rel_tol=1e-6)
    assert list(paths.values()) == sorted(paths.values(), reverse=True)
    assert {"model.stack.layer.ffn.up", "model.stack.layer.mixer", "model.head", "learner"} <= set(paths)
