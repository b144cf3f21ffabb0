# SPDX-License-Identifier: Apache-2.0
"""On any mesh, loss and gradients are those of one device. A sample; `python tools/sharding.py` tries every mesh."""

import jax
import pytest

from dovetail.module import abstract
from dovetail.parallel import layout_of, parse_mesh
from dovetail.train import gradients_of
from sharding import (
    ALL,
    EARLY,
    KINDS,
    PLAIN,
    Variant,
    allowed_error,
    batch_of,
    meshes,
    model_of,
    rounding_errors,
    worst_error,
)

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
    assert error <= allowed_error(kind, parse_mesh(mesh), variant), where


@pytest.mark.parametrize("kind", KINDS)
def test_on_one_device_nothing_of_it_is_in_the_program(kind):
    """With a layout, constraints are there: the test can fail."""
    model = model_of(kind, PLAIN).build(path="model")
    batch = batch_of(260, PLAIN)

    def program(layout):
        step = gradients_of(model, num_microbatches=1, dtype=None, layout=layout)
        return str(jax.make_jaxpr(step)(abstract(model), batch, None))

    alone = program(layout_of(parse_mesh("")))
    assert not any(name in alone for name in ("sharding_constraint", "shard_map", "pvary", "remat"))
    with jax.set_mesh(parse_mesh("fsdp=8").on()):
        assert "sharding_constraint" in program(layout_of(parse_mesh("fsdp=8")))


def test_bfloat16_on_a_mesh_is_as_close_to_float32_as_on_one_device():
    here, alone = rounding_errors("dense", parse_mesh("fsdp=2,seq=2,tensor=2"), Variant(dtype="bfloat16"))
    assert 1e-3 < here <= 1.5 * alone


@pytest.mark.parametrize("kind, count", [("dense", 35), ("moe", 56), ("mla", 56), ("hybrid", 35)])
def test_the_tool_tries_every_mesh_that_applies(kind, count):
    """Three factors of 2 go to five axes in 35 ways, and to six in 56."""
    found = [mesh.text() for mesh in meshes(kind)]
    assert len(found) == len(set(found)) == count
    assert set(KINDS) == {"dense", "moe", "mla", "hybrid"}
