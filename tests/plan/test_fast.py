# SPDX-License-Identifier: Apache-2.0
"""Times of many runs at once."""

import pytest

from dovetail.config import ConfigError
from dovetail.hardware import hardware
from dovetail.plan import on_hardware, step_parts, work_of
from dovetail.plan._fast import Chips
from dovetail.plan._predict import run_of
from dovetail.zoo import recipe


def test_what_goes_to_the_memory_of_the_host_takes_time():
    cfg = on_hardware(recipe("llama2-7b"), "tpu-v5p-64")
    chips, work = Chips(hardware("tpu-v5p-64")), work_of(cfg)
    kept, offloaded = (
        sum(step_parts(work, run_of(cfg.set(remat=remat)), chips.machine, chips.constants).values())
        for remat in ("save_qkvo", "offload_qkvo")
    )
    assert offloaded > kept


def test_changed_figures_change_only_a_copy():
    chips = Chips(hardware("tpu-v5p-8"))
    faster = chips.changed(machine={"peak": 2 * chips.machine.peak})
    assert faster.machine.peak == 2 * chips.machine.peak
    assert faster.constants == chips.constants


def test_a_chip_without_figures_is_refused():
    with pytest.raises(ConfigError, match="cpu-1: the peak of CPU or the bandwidth of its memory is not known"):
        Chips(hardware("cpu-1"))
