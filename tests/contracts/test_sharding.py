# SPDX-License-Identifier: Apache-2.0
"""On any mesh, loss and gradients are those of one device. A sample; `python tools/sharding.py` tries every mesh."""

import pytest

from dovetail.parallel import parse_mesh
from sharding import ALL, EARLY, KINDS, PLAIN, TOLERANCE, Variant, meshes, rounding_errors, worst_error

SAMPLE = [
    ("dense", "fsdp=2,seq=2,tensor=2", ALL),
    ("dense", "pipeline=2,data=2,tensor=2", EARLY),
    ("moe", "fsdp=2,expert=2,tensor=2", ALL),
    ("moe", "pipeline=2,expert=4", PLAIN),
    ("mla", "pipeline=2,expert=2,seq=2", ALL),
    ("hybrid", "data=2,seq=2,tensor=2", ALL),
]


@pytest.mark.parametrize("kind, mesh, variant", SAMPLE, ids=lambda value: str(value))
def test_a_mesh_changes_nothing_but_the_order_of_sums(kind, mesh, variant):
    error, where = worst_error(kind, parse_mesh(mesh), variant)
    assert error <= TOLERANCE, where


def test_bfloat16_on_a_mesh_is_as_close_to_float32_as_on_one_device():
    here, alone = rounding_errors("dense", parse_mesh("fsdp=2,seq=2,tensor=2"), Variant(dtype="bfloat16"))
    assert 1e-3 < here <= 1.5 * alone


@pytest.mark.parametrize("kind, count", [("dense", 35), ("moe", 56), ("mla", 56), ("hybrid", 35)])
def test_the_tool_tries_every_mesh_that_applies(kind, count):
    """Three factors of 2 go to five axes in 35 ways, and to six in 56."""
    found = [mesh.text() for mesh in meshes(kind)]
    assert len(found) == len(set(found)) == count
    assert set(KINDS) == {"dense", "moe", "mla", "hybrid"}
