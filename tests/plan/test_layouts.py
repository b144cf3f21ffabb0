# SPDX-License-Identifier: Apache-2.0
"""Many meshes at once, held against the functions for one of them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.parallel import MESH_AXES, BatchShape, Mesh, Rules, fits
from dovetail.plan._estimate import describe, gathered_bytes, state_bytes
from dovetail.plan._layouts import all_sizes, layers_in_loops, layouts, splits_layers
from dovetail.zoo import recipe

NAMES = ("llama2-70b", "qwen3-30b-a3b", "deepseek-v3-tiny")
ABOUT = {}


def about(name):
    if name not in ABOUT:
        ABOUT[name] = describe(recipe(name))
    return ABOUT[name]


@given(st.sampled_from(NAMES), st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=6, max_size=6))
@settings(max_examples=60, deadline=None)
def test_meshes_at_once_are_what_each_is_alone(name, sizes):
    model, batch = about(name), BatchShape(math.prod(sizes) * 12, {"seq": 64})
    mesh = Mesh(**dict(zip(MESH_AXES, sizes, strict=True)))
    found = layouts({axis: np.array([size]) for axis, size in mesh.sizes.items()}, model.specs, Rules(), batch)
    alone = mesh.set(pipeline=1)  # Whether a pipeline splits the layers is asked for elsewhere.
    if mesh.pipeline == 1:
        assert bool(found.divides[0]) == fits(alone, model.specs, batch)
    if found.divides[0]:
        assert math.isclose(found.held[0] * (2 + model.slots), state_bytes(model, mesh))
        assert math.isclose(found.gathered[0], gathered_bytes(model, mesh))


@given(st.sampled_from([1, 8, 24, 64, 96]), st.sampled_from([1, 8, 128]))
@settings(max_examples=20, deadline=None)
def test_the_sizes_of_every_mesh_multiply_to_the_devices_and_no_mesh_is_there_twice(devices, experts):
    found = all_sizes(devices, experts, {80: 1.0})
    rows = np.stack([found[axis] for axis in MESH_AXES], -1)
    assert (np.prod(rows, -1) == devices).all()
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert (experts % found["expert"] == 0).all()
    assert (80 % found["pipeline"] == 0).all()


@pytest.mark.parametrize(
    "loops, pieces, wanted",
    [({80: 1.0}, 8, True), ({80: 1.0}, 3, False), ({58: 0.97, 3: 0.03}, 2, True), ({40: 0.6, 3: 0.4}, 2, False)],
)
def test_a_pipeline_has_to_split_nearly_all_layers(loops, pieces, wanted):
    assert splits_layers(loops, pieces) == wanted


def test_loops_are_told_apart_by_their_length():
    assert layers_in_loops(about("llama2-70b").specs) == {80: 1.0}
    assert set(layers_in_loops(about("deepseek-v3-tiny").specs)) > {1}
