# SPDX-License-Identifier: Apache-2.0
"""Candidates: each is a run that divides and fits, and what a user has fixed stays."""

import functools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.hardware import hardware
from dovetail.plan import estimate, on_hardware, policies_for
from dovetail.plan._candidates import NAMES, candidates
from dovetail.plan._search import divides
from dovetail.zoo import recipe

PLACES = (("llama2-7b", "gpu-h100-64"), ("qwen3-30b-a3b", "tpu-v6e-64"))


@functools.cache
def found(name, on):
    base = on_hardware(recipe(name), on)
    return base, candidates(base, hardware(on), policies=policies_for(base, hardware(on)))


@given(st.sampled_from(PLACES), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_every_candidate_is_a_run_on_all_devices_that_divides_and_fits(place, draw):
    base, some = found(*place)
    hw, at = hardware(place[1]), draw % len(some.bytes)
    cfg = some.config(at, base, hw)
    assert cfg.mesh.num_devices == hw.num_devices
    assert divides(cfg)
    said = estimate(cfg, hw)
    assert math.isclose(said.total_gib, some.bytes[at] * hw.chip.devices / 2**30)
    assert said.fits


def test_what_is_fixed_stays():
    base, some = found(*PLACES[0])
    fixed = {"mesh.tensor": 4, "remat": "full", "num_microbatches": 2}
    chosen = candidates(base, hardware("gpu-h100-64"), fixed)
    assert 0 < len(chosen.bytes) < len(some.bytes)
    assert set(chosen.sizes["tensor"]) == {4}
    assert set(chosen.microbatches) == {2}
    assert {NAMES[i] for i in chosen.remat} == {"full"}


def test_offloading_is_tried_where_the_mesh_rules_have_it():
    assert "offload_qkvo" in policies_for(recipe("llama2-7b"), hardware("tpu-v5p-8"))
    assert "offload_qkvo" not in policies_for(recipe("llama2-7b"), hardware("gpu-h100-8"))


@pytest.mark.parametrize("stages, wanted", [(1, {"data", "fsdp"}), (2, {"pipeline"})])
def test_slices_are_joined_along_stages_replicas_or_what_splits_parameters(stages, wanted):
    base = on_hardware(recipe("llama2-7b"), "tpu-v5p-64x2")
    hw = hardware("tpu-v5p-64x2")
    some = candidates(base, hw, {"mesh.pipeline": stages, "remat": "full"})
    outer = [dict(some.config(i, base, hw).mesh.across_slices) for i in range(0, len(some.bytes), 7)]
    assert {axis for each in outer for axis in each} == wanted
    assert all(list(each.values()) == [2] for each in outer)
