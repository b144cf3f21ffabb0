# SPDX-License-Identifier: Apache-2.0
"""What to change where no mesh spreads a run over some hardware."""

import re

import pytest

from dovetail.config import ConfigError
from dovetail.hardware import hardware
from dovetail.plan import on_hardware
from dovetail.zoo import recipe


@pytest.mark.parametrize(
    "name, on, fit",
    [
        ("qwen3-tiny", "tpu-v5p-8192", "16, or other hardware: tpu-v5p-4096."),
        ("llama2-7b", "gpu-h100-24", "1008 or 1032, or other hardware: gpu-h100-16 or gpu-h100-32."),
        (
            "llama2-7b",
            "gpu-gb200-72",
            "1008 or 1080, or other hardware: gpu-gb200-64 or gpu-gb200-128.",
        ),
    ],
)
def test_where_no_mesh_fits_the_sizes_that_do_are_named_and_work(name, on, fit):
    cfg = recipe(name)
    with pytest.raises(ConfigError) as e:
        on_hardware(cfg, on)
    chips, rows, tokens = hardware(on).num_devices, cfg.input.batch_size, cfg.input.seq_len
    assert str(e.value) == (
        f"no mesh spreads this over the {chips} devices of {on}: a batch has {rows} rows (seq {tokens}), and heads "
        f"and layers can be split only so far.\n  Use input.batch_size={fit}"
    )
    for size in fit.partition(",")[0].split(" or "):
        on_hardware(cfg.set_in("input.batch_size", int(size)), on)
    for other in re.findall(r"[tg]pu-\S+-\d+", fit):
        on_hardware(cfg, other)
