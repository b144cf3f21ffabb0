# SPDX-License-Identifier: Apache-2.0
"""Recipes on pools, by prediction."""

import subprocess
import sys

import pytest

from dovetail.hardware import hardware
from dovetail.launch.schedule import Pool
from dovetail.launch.schedule.recipes import predicted
from dovetail.plan import goodput, on_hardware, policies_for, search
from dovetail.zoo import recipe


def test_a_rate_is_that_of_the_fastest_way_to_run_less_what_failures_take():
    cfg = recipe("llama2-7b")
    spot = Pool(name="spot", hardware="gpu-h100", count=64, kind="spot", interruptions=1e-3, recovery_seconds=600.0)
    found = predicted(cfg, [(spot, 64), (spot, 3), (spot.set(name="ours", interruptions=0.0), 64)])
    chips = hardware("gpu-h100-64")
    base = on_hardware(cfg, chips.name)
    step = search(base, chips, policies=policies_for(base, chips)).seconds[0]
    assert found.rates["ours", 64] == pytest.approx(1 / step)
    assert found.rates["spot", 64] == pytest.approx(goodput(64, 1e-3, 5.0, 600.0).share / step)
    assert "does not come in 3" in found.skipped["spot", 3]
    assert found.steps == cfg.steps


def test_to_schedule_needs_no_jax():
    program = "import sys, dovetail.launch.schedule; assert not {'jax', 'dovetail.plan'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
