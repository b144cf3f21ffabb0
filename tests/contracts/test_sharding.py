# SPDX-License-Identifier: Apache-2.0
"""On any mesh, loss and gradients are those of one device. A sample; `python tools/sharding.py` tries every mesh.

A few cases are random, from a seed: `SHARDING_SEED=7` draws others, and `make sharding` hundreds.
"""

import os
import random
import re
import subprocess
import sys

import jax
import pytest

from dovetail.config import ConfigError
from dovetail.module import abstract
from dovetail.parallel import layout_of, parse_mesh
from dovetail.train import gradients_of
from sharding_cases import (
    ALL,
    EARLY,
    KINDS,
    PLAIN,
    Variant,
    allowed_error,
    any_case,
    batch_of,
    draw,
    meshes,
    model_of,
    rounding_errors,
    traced,
    worst_error,
)

SAMPLE = [
    ("dense", "fsdp=2,seq=2,tensor=2", ALL),
    ("dense", "pipeline=2,data=2,tensor=2", EARLY),
    pytest.param("moe", "fsdp=2,expert=2,tensor=2", ALL, marks=pytest.mark.long),
    pytest.param("moe", "pipeline=2,expert=4", PLAIN, marks=pytest.mark.slow),
    pytest.param("mla", "pipeline=2,expert=2,seq=2", ALL, marks=pytest.mark.long),
    pytest.param("hybrid", "data=2,seq=2,tensor=2", ALL, marks=pytest.mark.long),
]


@pytest.mark.parametrize("kind, mesh, variant", SAMPLE, ids=lambda value: str(value))
def test_a_mesh_changes_nothing_but_the_order_of_sums(kind, mesh, variant):
    error, where = worst_error(kind, parse_mesh(mesh), variant)
    assert error <= allowed_error(kind, parse_mesh(mesh), variant), where


SEED = int(os.environ.get("SHARDING_SEED", "8"))


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3))])
def test_a_random_case_changes_nothing_but_the_order_of_sums(number):
    case = draw(SEED, number)
    error, allowed, where = case.error()
    again = f"python tools/sharding.py --random 1 --seed {SEED} --first {number} --here"
    assert error <= allowed, f"{case}: {where}\n  Again by: {again}"


@pytest.mark.long
def test_what_the_check_of_a_mesh_accepts_can_be_traced_and_so_can_what_it_proposes():
    """Nothing is compiled."""
    rng, counts = random.Random(SEED), {"accepted": 0, "proposed": 0}
    while min(counts.values()) < 6:
        case = any_case(rng)
        mesh, outcome = case.mesh, "accepted"
        try:
            case.check()
        except ConfigError as e:
            found = re.search(r"of 8 devices that fit: ([a-z0-9=,]*)", str(e))
            if found is None:
                continue
            mesh, outcome = parse_mesh(found[1]), "proposed"
        if counts[outcome] < 6:
            counts[outcome] += 1
            traced(case.recipe, mesh, case.variant)


OPTIMIZED = """
from dovetail.parallel import parse_mesh
from sharding_cases import Variant, allowed_error, worst_error

case = "gemma2-tiny", parse_mesh("expert=2,seq=4"), Variant(parts=2, ring=True, tokens=24)
error, where = worst_error(*case)
assert error <= allowed_error(*case), (error, where)
"""


@pytest.mark.long
def test_ring_attention_compiled_as_users_compile_it_meets_all_its_devices():
    """Collectives of one channel met each other here, and the process was aborted."""
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environ |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", OPTIMIZED], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


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
