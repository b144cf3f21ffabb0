# SPDX-License-Identifier: Apache-2.0
"""Meshes as configs: what they are called, what they refuse, and how devices are arranged."""

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, from_json, to_json
from dovetail.parallel import MESH_AXES, Mesh, parse_mesh, shrink
from support import compilers


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("data=2,tensor=4", {"data": 2, "tensor": 4}),
        (" fsdp=8 ", {"fsdp": 8}),
        ("data=2x4", {"data": 8}),
        ("", {}),
    ],
)
def test_a_mesh_is_named_by_its_axes(text, sizes):
    mesh = parse_mesh(text)
    assert mesh.sizes == {**dict.fromkeys(MESH_AXES, 1), **sizes}
    assert parse_mesh(mesh.text()) == mesh


def test_naming_axes_changes_nothing_else():
    base = Mesh(data=2, microbatches=8, attention="ring")
    assert parse_mesh("pipeline=2", base) == Mesh(pipeline=2, microbatches=8, attention="ring")


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "dta=2",
            "mesh: there is no mesh axis 'dta'. Did you mean 'data'? "
            "There are: pipeline, data, fsdp, expert, seq, tensor.",
        ),
        ("data=two", "mesh: 'data=two' is not AXIS=SIZE or AXIS=SLICESxSIZE, as in data=2,fsdp=2x4."),
        ("data", "mesh: 'data' is not AXIS=SIZE or AXIS=SLICESxSIZE, as in data=2,fsdp=2x4."),
        ("data=0", "mesh.data is 0, expected at least 1."),
        ("data=0x2", "mesh.across_slices.data is 0, expected at least 1."),
    ],
)
def test_what_is_not_a_mesh_is_refused(text, message):
    with pytest.raises(ConfigError) as e:
        parse_mesh(text)
    assert str(e.value) == message


@pytest.mark.parametrize(
    "mesh, message",
    [
        (Mesh(rounds=0), "mesh.rounds is 0, expected at least 1."),
        (Mesh(across_slices={"dat": 2}), "mesh.across_slices: there is no mesh axis 'dat'. Did you mean 'data'?"),
        (
            Mesh(pipeline=2, rounds=2, schedule="one_forward_one_backward"),
            "mesh.rounds is 2, but one_forward_one_backward has one round. Set it to 1.",
        ),
        (
            Mesh(pipeline=4, rounds=2, microbatches=2),
            "mesh.microbatches is 2, fewer than the stages (4), with 2 rounds.\n"
            "  A microbatch must be back before its next round: use at least 4.",
        ),
    ],
)
def test_values_that_make_no_sense_are_refused(mesh, message):
    with pytest.raises(ConfigError) as e:
        mesh.check()
    assert str(e.value).startswith(message)


def test_a_rule_for_an_axis_that_does_not_exist_is_refused():
    mesh = Mesh(data=2).set_in("rules.parameters", {"embed": ("fdsp",)})
    with pytest.raises(ConfigError) as e:
        mesh.check()
    assert str(e.value).startswith("mesh.rules.parameters.embed: there is no mesh axis 'fdsp'. Did you mean 'fsdp'?")


def test_neighbours_along_the_last_axis_are_neighbours():
    devices = parse_mesh("data=2,tensor=4").on()
    assert devices.axis_names == MESH_AXES
    ids = np.vectorize(lambda device: device.id)(devices.devices).reshape(2, 4)
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_the_outer_part_of_an_axis_goes_between_slices():
    """Slices are the first and the last four devices: only the outer part of `data` crosses from one to the other."""
    devices = parse_mesh("data=2x2,tensor=2").on()
    ids = np.vectorize(lambda device: device.id)(devices.devices).reshape(4, 2)
    np.testing.assert_array_equal(ids, [[0, 1], [2, 3], [4, 5], [6, 7]])
    devices = parse_mesh("data=2,tensor=2x2").on()
    ids = np.vectorize(lambda device: device.id)(devices.devices).reshape(2, 4)
    np.testing.assert_array_equal(ids, [[0, 1, 4, 5], [2, 3, 6, 7]])


def test_too_few_devices_are_an_error_that_says_how_many_there_are():
    with pytest.raises(ConfigError) as e:
        parse_mesh("data=3,tensor=4").on()
    assert str(e.value) == ("mesh data=3,tensor=4 takes 12 devices, but there are 8 (cpu).\n  Use a mesh of 8.")


def test_a_mesh_travels_with_a_config():
    mesh = Mesh(data=2, across_slices={"data": 2}, attention="ring").set_in("rules.may_stay_whole", ("heads",))
    assert from_json(to_json(mesh)) == mesh
    assert mesh.on(jax.devices()[:4]).size == 4


@pytest.mark.parametrize(
    "text, count, wanted",
    [
        ("data=2,tensor=4", 8, "data=2,tensor=4"),
        ("data=2,tensor=4", 7, "tensor=4"),
        ("data=2x4,fsdp=8", 8, "fsdp=8"),
        ("pipeline=4,data=4,fsdp=4", 8, "pipeline=2,fsdp=4"),
        ("data=3,tensor=5", 4, "data=3"),
        ("pipeline=2,data=2", 2, "pipeline=2"),
        ("data=512", 1, "data=1"),
    ],
)
def test_a_mesh_shrinks_to_the_devices_there_are_and_keeps_what_splits_parameters(text, count, wanted):
    assert shrink(parse_mesh(text), count).text() == wanted


def test_a_mesh_that_shrinks_to_one_stage_has_no_rounds():
    mesh = parse_mesh("pipeline=2", Mesh(rounds=2, microbatches=4))
    assert shrink(mesh, 1) == Mesh()


_ON_A_TORUS = """
import sys
from dovetail.aot import described_devices
from dovetail.hardware import hardware
from dovetail.parallel import parse_mesh

devices = described_devices(hardware(sys.argv[1]))
for text in sys.argv[2:]:
    found = parse_mesh(text).on(devices).devices
    pairs = zip(found[..., 0].flat, found[..., 1].flat)
    apart = [sum(abs(a - b) for a, b in zip(x.coords, y.coords)) for x, y in pairs]
    print(text, len({device.id for device in found.flat}), set(apart))
"""


def test_an_axis_that_is_no_whole_dimension_of_a_torus_is_a_part_of_one():
    """JAX by itself refuses these: 16 x 16 chips have no dimension of 2 or of 4."""
    printed = compilers.run("tpu", _ON_A_TORUS, "tpu-v6e-256", "fsdp=128,tensor=2", "fsdp=64,tensor=4").splitlines()
    assert printed == ["fsdp=128,tensor=2 256 {1}", "fsdp=64,tensor=4 256 {1}"]
