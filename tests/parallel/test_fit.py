# SPDX-License-Identifier: Apache-2.0
"""Meshes that cannot work are refused before anything is compiled, with the nearest ones that can."""

import math

import pytest

from dovetail.config import ConfigError
from dovetail.module import specs
from dovetail.parallel import BatchShape, check_fit, factorisations, parse_mesh, placed, placement_text
from dovetail.zoo import model

TREE = specs(model("llama3-8b").build(path="model"))
STEP = BatchShape(64, {"seq": 4096})


@pytest.mark.parametrize("text", ["data=64", "fsdp=16,tensor=8", "pipeline=4,data=2,seq=4", "tensor=32", "data=1"])
def test_a_mesh_that_fits_is_accepted(text):
    check_fit(parse_mesh(text), TREE, STEP)


@pytest.mark.parametrize(
    "text, batch, message",
    [
        (
            "tensor=64",
            STEP,
            "the mesh tensor=64 does not fit:\n"
            "  model.stack.layer.mixer.out.weight: dimension 1 (heads) has size 32, which tensor = 64 does not divide. "
            "Sizes that do: 1, 2, 4, 8, 16, 32.\n"
            "  model.stack.layer.mixer.query.weight: dimension 2 (heads) has size 32, which tensor = 64 does not "
            "divide. Sizes that do: 1, 2, 4, 8, 16, 32.\n"
            "  The nearest of 64 devices that fit: seq=2,tensor=32; fsdp=2,tensor=32; data=2,tensor=32.",
        ),
        (
            "data=2,fsdp=3",
            BatchShape(64, {"seq": 4096}, 2),
            "the mesh data=2,fsdp=3 does not fit:\n"
            "  model.embedding.table: dimension 1 (embed) has size 4096, which fsdp = 3 does not divide. "
            "Sizes that do: 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096.",
        ),
        (
            "data=16",
            BatchShape(24, {"seq": 4096}, 2),
            "the mesh data=16 does not fit:\n"
            "  input.batch_size is 24, expected a multiple of 32 = data (16) x num_microbatches (2).\n"
            "  The nearest of 16 devices that fit: data=4,tensor=4; data=4,seq=2,tensor=2; data=4,seq=4.",
        ),
        (
            "seq=3",
            STEP,
            "the mesh seq=3 does not fit:\n"
            "  input: rows have size 4096 along 'seq', expected a multiple of seq = 3.\n"
            "  No mesh of 3 devices fits this model and batch. Use fewer devices, or an input.batch_size that is a "
            "multiple of 3, for data=3.",
        ),
        (
            "pipeline=3",
            BatchShape(3, {"seq": 4096}),
            "the mesh pipeline=3 does not fit:\n"
            "  pipeline (3) does not divide the number of layers, 32. Sizes that do: 1, 2, 4, 8, 16, 32.\n"
            "  The nearest of 3 devices that fit: data=3.",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_with_the_nearest_that_do(text, batch, message):
    with pytest.raises(ConfigError) as e:
        check_fit(parse_mesh(text), TREE, batch)
    assert str(e.value).startswith(message)


def test_what_is_proposed_is_accepted():
    with pytest.raises(ConfigError) as e:
        check_fit(parse_mesh("tensor=64"), TREE, STEP)
    for text in str(e.value).rpartition(": ")[2].rstrip(".").split("; "):
        check_fit(parse_mesh(text), TREE, STEP)


def test_factorisations_are_all_of_them_once():
    found = list(factorisations(8, 3))
    assert len(found) == len(set(found)) == 10  # Three factors of 2 in three places.
    assert all(math.prod(sizes) == 8 for sizes in found)


def test_bytes_per_device_add_up_to_the_whole_where_all_is_split():
    rows = placed(parse_mesh("data=2,fsdp=4,tensor=2"), TREE)
    by_path = {row.path: row for row in rows}
    query = by_path["model.stack.layer.mixer.query.weight"]
    assert query.mesh_axes == ((), ("fsdp",), ("tensor",), ())
    assert query.bytes_per_device * 8 == 32 * 4096 * 4096 * 4
    assert by_path["model.norm.scale"].bytes_per_device == 4096 * 4  # On every device.
    lines = placement_text(rows).splitlines()
    assert len(lines) == len(rows) + 2
    assert lines[-1] == f"total: {sum(row.bytes_per_device for row in rows):,} bytes of parameters per device"
    assert "-, fsdp, tensor, -" in next(line for line in lines if "query" in line)
