# SPDX-License-Identifier: Apache-2.0
"""Hardware as compilers want it: what is handed to them, and, where they are installed, what they make of it."""

import json

import pytest

from dovetail.config import ConfigError
from dovetail.hardware import CHIPS, gpu_target, gpu_topology, hardware, tpu_topology
from support import compilers

PLACES = [
    *(
        "tpu-v4-8",
        "tpu-v4-128x2",
        "tpu-v5e-1",
        "tpu-v5e-8",
        "tpu-v5e-256x2",
        "tpu-v5p-16",
        "tpu-v5p-512",
        "tpu-v5p-640",
    ),
    *("tpu-v5p-512x2", "tpu-v6e-4", "tpu-v6e-128", "tpu-v6e-256", "tpu-v7x-2", "tpu-v7x-128", "tpu-v7x-512x2"),
]
KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "v7x": "TPU7x"}
GATHERS = ["tpu-v4-512", "tpu-v5e-256", "tpu-v5p-512", "tpu-v6e-256", "tpu-v7x-512"]
GPUS = [f"{chip.name}-16" for chip in CHIPS.values() if chip.target]

# Run on its own: a compiler for other chips is told about them before JAX starts.
TPU_PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec as P
from dovetail.hardware import hardware, tpu_topology
from dovetail.parallel import Mesh

def devices(name, **changed):
    return topologies.get_topology_desc(**tpu_topology(hardware(name)) | changed).devices

def facts(name):
    found = devices(name)
    last, hosts = found[-1], {device.process_index for device in found}
    slices = {getattr(device, "slice_index", 0) for device in found}
    return [len(found), last.device_kind, last.coords, last.core_on_chip, len(hosts), len(slices)]

def gather(name, **changed):
    mesh = Mesh(fsdp=hardware(name).num_devices).on(devices(name, **changed))
    split = jax.ShapeDtypeStruct((8192, 28672), jnp.bfloat16, sharding=NamedSharding(mesh, P("fsdp")))
    text = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P())).lower(split).compile().as_text()
    return [op for op in ("all-gather(", "all-reduce(", "3DAllGather", "2DAllGather") if op in text]

places, gathers = json.loads(sys.argv[1])
print(json.dumps({
    "places": {name: facts(name) for name in places},
    "gathers": {name: gather(name) for name in gathers},
    "open": gather("tpu-v5p-512", wrap=(False, False, False)),
}))
"""

GPU_PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec as P
from dovetail.hardware import gpu_topology, hardware
from dovetail.parallel import Mesh

def facts(name):
    devices = topologies.get_topology_desc(**gpu_topology(hardware(name))).devices
    mesh = Mesh(fsdp=len(devices)).on(devices)
    rows = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=NamedSharding(mesh, P("fsdp")))
    text = jax.jit(lambda x, w: x @ w, out_shardings=rows.sharding).lower(rows, rows).compile().as_text()
    first = devices[0]
    return [len(devices), first.device_kind, len({d.process_index for d in devices}), "all-gather" in text]

print(json.dumps({name: facts(name) for name in json.loads(sys.argv[1])}))
"""


def run(platform, program, argument):
    return json.loads(compilers.run(platform, program, json.dumps(argument)).splitlines()[-1])


@pytest.fixture(scope="module")
def tpus():
    return run("tpu", TPU_PROGRAM, [PLACES, GATHERS])


@pytest.mark.parametrize("name", PLACES)
def test_the_tpu_compiler_sees_the_devices_that_the_catalogue_says(tpus, name):
    hw = hardware(name)
    last = [*(size - 1 for size in hw.shape), 0][:3]
    kind = KINDS[hw.chip.name.removeprefix("tpu-")]
    want = [hw.num_devices, kind, last, hw.chip.devices - 1, hw.num_hosts, hw.slices]
    assert tpus["places"][name] == want


@pytest.mark.parametrize("name", GATHERS)
def test_an_all_gather_over_a_whole_slice_stays_one(tpus, name):
    assert tpus["gathers"][name][0] == "all-gather("
    assert "all-reduce(" not in tpus["gathers"][name]


def test_rings_decide_what_becomes_of_an_all_gather(tpus):
    assert "3DAllGather" in tpus["gathers"]["tpu-v5p-512"]
    assert "2DAllGather" in tpus["gathers"]["tpu-v6e-256"]
    assert tpus["open"] == ["all-reduce("]  # Twice the bytes: what a topology without rings would make us believe.


def test_the_gpu_compiler_takes_every_description():
    found = run("cuda", GPU_PROGRAM, GPUS)
    for name in GPUS:
        hw = hardware(name)
        assert hw.chip.target is not None
        assert found[name] == [16, hw.chip.target.description, hw.num_hosts, True]


def test_a_tpu_topology_names_slices_hosts_and_rings():
    assert tpu_topology(hardware("tpu-v5p-512x2")) == {
        "platform": "tpu",
        "topology_name": "v5p:4x8x8",
        "chip_config_name": "megacore",
        "chips_per_host_bounds": (2, 2, 1),
        "num_slices": 2,
        "wrap": (True, True, True),
    }
    flat = tpu_topology(hardware("tpu-v6e-128"))
    assert (flat["topology_name"], flat["chips_per_host_bounds"], flat["wrap"]) == (
        "v6e:8x16",
        (2, 2, 1),
        (False, True, False),
    )
    assert tpu_topology(hardware("tpu-v7x-2"))["chips_per_host_bounds"] == (1, 1, 1)


def test_a_gpu_topology_counts_hosts_and_gpus_of_each():
    assert gpu_topology(hardware("gpu-h100-256"))["topology"] == "1x32x8"
    assert gpu_topology(hardware("gpu-h100-2"))["topology"] == "1x1x2"
    assert gpu_topology(hardware("gpu-gb200-144"))["topology"] == "1x36x4"


def test_a_gpu_description_is_text_with_the_figures_of_the_catalogue():
    text = gpu_target(hardware("gpu-h100-8"))
    assert 'device_description_str: "NVIDIA H100 80GB HBM3"\n' in text
    assert "cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }\n" in text
    assert "  core_count: 132\n" in text
    assert "  memory_bandwidth: 3352320000000\n" in text
    assert "  device_memory_size: 84942979072\n" in text
    assert "rate_infos { key: 16 value { clock_rate_ghz: 1.8295201 units_per_core: 4 ops_per_clock: 512 } }\n" in text
    assert text.count("{") == text.count("}")
    assert "feature_extension: NONE" in gpu_target(hardware("gpu-a100-8"))


@pytest.mark.parametrize(
    "describe, name, message",
    [
        (
            tpu_topology,
            "gpu-h100-8",
            "gpu-h100-8: NVIDIA H100 SXM 80 GB is no TPU.*Those are: tpu-v4, tpu-v5e, tpu-v5p",
        ),
        (
            gpu_topology,
            "gpu-mi300x-8",
            "gpu-mi300x-8: AMD Instinct MI300X is no NVIDIA GPU.*Those are: gpu-a100, gpu-h100",
        ),
        (gpu_target, "cpu-8", "cpu-8: CPU is no NVIDIA GPU"),
    ],
)
def test_what_has_no_compiler_is_refused(describe, name, message):
    with pytest.raises(ConfigError, match=message):
        describe(hardware(name))
