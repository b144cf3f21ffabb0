# SPDX-License-Identifier: Apache-2.0
"""A program is for the platform of its mesh, or else of the devices that are there."""

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from dovetail.ops import runs_on, target


def test_without_a_mesh_the_platform_is_that_of_the_devices():
    assert target() == "cpu"


@pytest.mark.parametrize(
    "kind, platform, name", [("TPU v5", "tpu", "tpu"), ("H100", "gpu", "cuda"), ("NC_v3", "neuron", "neuron")]
)
def test_a_mesh_of_devices_that_are_not_there_decides_even_inside_a_traced_function(kind, platform, name):
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
    with jax.sharding.use_abstract_mesh(AbstractMesh((2,), ("data",), abstract_device=device)):
        found = []
        jax.eval_shape(lambda: found.append(target()))
        assert found == [name]
        assert runs_on(name)
        assert not runs_on("cpu")


def test_another_platform_is_refused_with_both_names():
    assert runs_on("cpu")
    assert runs_on("tpu").reason == "it runs on tpu, this is cpu"
