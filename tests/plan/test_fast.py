# SPDX-License-Identifier: Apache-2.0
"""Times of many runs at once."""

import pytest

from dovetail.config import ConfigError, replace_all
from dovetail.hardware import hardware
from dovetail.nn import DenseLinear, Float8Linear
from dovetail.plan import on_hardware
from dovetail.plan._fast import Chips, bits_of, parts_of_step, run_of
from dovetail.plan._work import work_of
from dovetail.zoo import recipe


def test_what_goes_to_the_memory_of_the_host_takes_time():
    cfg = on_hardware(recipe("llama2-7b"), "tpu-v5p-64")
    chips, work = Chips(hardware("tpu-v5p-64")), work_of(cfg)
    run = run_of(cfg.set(remat="offload_qkvo"))
    kept, offloaded = (sum(parts_of_step(work, run, chips, away).values()) for away in (False, True))
    assert offloaded > kept


def test_changed_figures_change_only_a_copy():
    chips = Chips(hardware("tpu-v5p-8"))
    faster = chips.changed(machine={"peak": 2 * chips.machine.peak})
    assert faster.machine.peak == 2 * chips.machine.peak
    assert faster.constants == chips.constants


def test_a_chip_without_figures_is_refused():
    with pytest.raises(ConfigError, match="cpu-1: the peak of CPU or the bandwidth of its memory is not known"):
        Chips(hardware("cpu-1"))


@pytest.mark.parametrize("linear, wanted", [(None, 16), (Float8Linear.Config(), 8)])
def test_bits_of_products_are_those_of_the_traced_program(linear, wanted):
    cfg = recipe("llama2-7b")
    change = replace_all(DenseLinear.Config, linear, at="*stack.*") if linear else lambda model: model
    assert bits_of(cfg.set(model=change(cfg.model))) == wanted
