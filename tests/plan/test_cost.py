# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a step: what any run must obey, and arrays against single runs."""

import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from dovetail.hardware import CHIPS, hardware
from dovetail.plan import constants_of, step_parts, work_of
from dovetail.plan._cost import Run, held, memory_of_step, stacked
from dovetail.plan._measured import machine_of
from dovetail.zoo import recipe

AXES = ("pipeline", "data", "fsdp", "expert", "seq", "tensor")
POWERS = st.sampled_from([1, 2, 4, 8])
RUNS = st.builds(
    lambda sizes, rows, parts, remat, bits, megatron: Run(
        dict(zip(AXES, map(float, sizes), strict=True)), float(rows), float(parts), 1.0, remat, float(bits), megatron
    ),
    st.tuples(*[POWERS] * 6),
    st.sampled_from([256, 1024]),
    st.sampled_from([1, 4]),
    st.integers(0, 3),
    st.sampled_from([16, 8, 4]),
    st.booleans(),
)
NAMES = ("llama2-7b", "qwen3-30b-a3b", "granite-4.0-h-micro")
HARDWARE = ("tpu-v5p-512", "gpu-h100-256", "gpu-gb200-64", "trn2-64")


def seconds(work, run, on):
    chosen = hardware(on)
    return {
        name: float(value)
        for name, value in step_parts(work, run, machine_of(chosen), constants_of(chosen.chip)).items()
    }


@hypothesis.given(run=RUNS, name=st.sampled_from(NAMES), on=st.sampled_from(HARDWARE))
@hypothesis.settings(max_examples=60, deadline=None)
def test_no_part_of_any_run_is_negative_or_without_a_value(run, name, on):
    parts = seconds(work_of(recipe(name)), run, on)
    assert all(math.isfinite(value) and value >= -1e-12 for value in parts.values())
    memory = memory_of_step(work_of(recipe(name)), run)
    assert 0 < float(memory.state) < math.inf
    assert 0 < float(memory.activations) < math.inf


@hypothesis.given(run=RUNS, on=st.sampled_from(HARDWARE))
@hypothesis.settings(max_examples=30, deadline=None)
def test_more_bandwidth_or_a_higher_peak_never_costs_time(run, on):
    work, chosen = work_of(recipe("qwen3-30b-a3b")), hardware(on)
    machine, k = machine_of(chosen), constants_of(chosen.chip)
    before = float(sum(step_parts(work, run, machine, k).values()))
    for field in ("peak", "bandwidth", "fast", "network"):
        faster = machine._replace(**{field: 2 * getattr(machine, field)})
        assert float(sum(step_parts(work, run, faster, k).values())) <= before * (1 + 1e-9)


def test_many_runs_at_once_are_as_one_by_one():
    work, chosen = work_of(recipe("llama2-7b")), hardware("gpu-h100-256")
    machine, k = machine_of(chosen), constants_of(chosen.chip)
    tensors = np.array([1.0, 2.0, 8.0])
    ones = dict.fromkeys(AXES, np.ones(3))
    many = Run(
        {**ones, "tensor": tensors, "fsdp": 64 / tensors}, np.full(3, 512.0), np.ones(3), np.ones(3), np.arange(3), 16.0
    )
    together: Any = sum(step_parts(work, many, machine, k).values())
    for i, tensor in enumerate(tensors):
        alone = Run({**dict.fromkeys(AXES, 1.0), "tensor": tensor, "fsdp": 64 / tensor}, 512.0, 1.0, 1.0, i, 16.0)
        assert float(sum(step_parts(work, alone, machine, k).values())) == pytest.approx(float(together[i]))
        assert float(memory_of_step(work, alone).total) == pytest.approx(float(memory_of_step(work, many).total[i]))


def test_several_models_at_once_are_as_one_by_one():
    works, chosen = [work_of(recipe(name)) for name in NAMES], hardware("gpu-h100-256")
    machine, k = machine_of(chosen), constants_of(chosen.chip)
    run = Run({**dict.fromkeys(AXES, 1.0), "fsdp": 256.0}, 1024.0, 1.0, 1.0, 1, 16.0)
    together = sum(step_parts(stacked(works), run, machine, k).values())
    alone = [float(sum(step_parts(work, run, machine, k).values())) for work in works]
    np.testing.assert_allclose(together, alone)


def test_a_device_holds_its_share_of_parameters():
    work = work_of(recipe("qwen3-30b-a3b"))
    whole = Run(dict.fromkeys(AXES, 1.0), 1.0, 1.0, 1.0, 0, 16.0)
    split = whole._replace(sizes={**whole.sizes, "expert": 8.0})
    experts = 48 * 128 * 3 * 2048 * 768
    assert float(held(work, whole)) == 30_532_122_624
    assert float(held(work, split)) == pytest.approx(30_532_122_624 - experts * 7 / 8)


def test_state_of_dense_training_takes_sixteen_bytes_a_parameter():
    work = work_of(recipe("llama2-7b"))
    run = Run({**dict.fromkeys(AXES, 1.0), "fsdp": 64.0}, 64.0, 1.0, 1.0, 3, 16.0)
    assert float(memory_of_step(work, run).state) == pytest.approx(16 * 6_738_415_616 / 64, rel=1e-2)


def test_constants_of_every_chip_with_a_peak_are_there():
    for chip in CHIPS.values():
        assert all(math.isfinite(value) for value in constants_of(chip))
