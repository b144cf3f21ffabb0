# SPDX-License-Identifier: Apache-2.0
"""The hardware catalogue: figures that agree with each other, names, and what is refused."""

import math
import re

import pytest

from dovetail.config import ConfigError, from_json, to_json
from dovetail.hardware import CHIPS, chip_of, hardware, nearest_hardware

TPUS = [chip for chip in CHIPS.values() if chip.platform == "tpu"]
NVIDIA = [chip for chip in CHIPS.values() if chip.target is not None]
KNOWN = [chip for chip in CHIPS.values() if chip.platform != "cpu"]  # Of a CPU, nothing is known.


def by_name(chip):
    return chip.name


@pytest.mark.parametrize("chip", KNOWN, ids=by_name)
def test_every_figure_has_a_source(chip):
    groups = {
        "compute": chip.peak,
        "memory": chip.hbm_bytes and chip.hbm_bandwidth,
        "network": chip.network,
        "sizes": chip.host or chip.torus,
        "target": chip.target,
        "price": chip.price,
        "power": chip.watts,
    }
    assert set(chip.source) == {group for group, figures in groups.items() if figures}
    assert all(chip.source.values())


@pytest.mark.parametrize("chip", KNOWN, ids=by_name)
def test_figures_are_of_the_size_that_chips_have(chip):
    assert chip.peak["bfloat16"] <= min(chip.peak.values())  # Smaller numbers, at least as fast.
    assert 1e14 < chip.peak["bfloat16"] < 1e16
    assert 15 * 2**30 < chip.hbm_bytes < 300 * 2**30
    assert 8e11 < chip.hbm_bandwidth < 1e13
    assert 100 < chip.peak["bfloat16"] / chip.hbm_bandwidth < 600  # FLOP per byte at which a matmul is compute bound.
    assert chip.network < chip.hbm_bandwidth / 50
    assert (chip.links is None) == (chip.link_bandwidth is None)
    if chip.links is not None:
        assert chip.network < chip.links * chip.link_bandwidth < chip.hbm_bandwidth


# NVIDIA's own figures for Blackwell are rounded up: the clock that the compiler is told gives 1 % and 4 % less.
@pytest.mark.parametrize("chip", NVIDIA, ids=by_name)
def test_peaks_of_gpus_are_cores_times_units_times_operations_times_clock(chip):
    above = {"gpu-b200": 1.011, "gpu-gb200": 1.043}.get(chip.name, 1)
    for dtype, ops in chip.target.matrix_ops.items():
        flops = 2 * chip.cores * 4 * ops * chip.target.matrix_clock_ghz * 1e9
        assert chip.peak[dtype] == pytest.approx(above * flops, rel=1e-3)


def test_peaks_of_tpus_are_matrix_units_times_area_times_clock():
    """Clocks and units of v4 and v5e: arXiv:2304.01433; scaling-book tpus.md."""
    assert CHIPS["tpu-v4"].peak["bfloat16"] == pytest.approx(2 * 2 * 4 * 128**2 * 1.05e9, rel=2e-3)
    assert CHIPS["tpu-v5e"].peak["bfloat16"] == pytest.approx(2 * 1 * 4 * 128**2 * 1.5e9, rel=2e-3)


def test_totals_of_whole_pods_and_racks_are_what_makers_publish():
    assert 256 * CHIPS["tpu-v5e"].peak["bfloat16"] == pytest.approx(50.63e15, rel=5e-3)
    assert 256 * CHIPS["tpu-v6e"].peak["bfloat16"] == pytest.approx(234.9e15, rel=1e-3)
    assert 4096 * CHIPS["tpu-v4"].peak["bfloat16"] == pytest.approx(1.1e18, rel=0.03)
    assert 72 * 2 * CHIPS["gpu-gb200"].peak["float8"] == 720e15  # Published for sparse matrices.
    assert 16 * CHIPS["trn2"].peak["bfloat16"] == pytest.approx(10.7e15, rel=3e-3)
    assert hardware("trn1-16").price == 21.5
    assert hardware("tpu-v5p-12288").price == pytest.approx(25804.8)
    # Makers add both ways of all links up.
    per_chip = {"tpu-v5e": 400e9, "tpu-v5p": 1200e9, "tpu-v6e": 800e9, "tpu-v7x": 1200e9, "gpu-a100": 600e9}
    per_chip |= {"gpu-h100": 900e9, "gpu-h200": 900e9, "gpu-b200": 1800e9, "gpu-gb200": 1800e9, "gpu-mi300x": 896e9}
    assert {name: 2 * (CHIPS[name].links or 0) * (CHIPS[name].link_bandwidth or 0) for name in per_chip} == per_chip


@pytest.mark.parametrize(
    "name, chips, devices, hosts, slices",
    [
        ("cpu-8", 8, 8, 1, 1),
        ("tpu-v4-8", 4, 4, 1, 1),
        ("tpu-v5p-512", 256, 256, 64, 1),
        ("tpu-v5p-512x2", 512, 512, 128, 2),
        ("tpu-v5e-1", 1, 1, 1, 1),
        ("tpu-v5e-8", 8, 8, 1, 1),
        ("tpu-v5e-256", 256, 256, 64, 1),
        ("tpu-v6e-256x4", 1024, 1024, 256, 4),
        ("tpu-v7x-2", 1, 2, 1, 1),
        ("tpu-v7x-128", 64, 128, 16, 1),
        ("gpu-a100-1", 1, 1, 1, 1),
        ("gpu-h100-4", 4, 4, 1, 1),
        ("gpu-h100-256", 256, 256, 32, 32),
        ("gpu-h200-24", 24, 24, 3, 3),
        ("gpu-b200-512", 512, 512, 64, 64),
        ("gpu-gb200-36", 36, 36, 9, 1),  # Half of a rack.
        ("gpu-gb200-144", 144, 144, 36, 2),
        ("gpu-gb200-1024", 1024, 1024, 256, 16),  # 64 of each rack.
        ("gpu-mi300x-16", 16, 16, 2, 2),
        ("trn1-32", 32, 64, 2, 2),
        ("trn2-1024", 1024, 4096, 64, 64),
    ],
)
def test_a_name_says_how_much_there_is(name, chips, devices, hosts, slices):
    hw = hardware(name)
    assert (hw.num_chips, hw.num_devices, hw.num_hosts, hw.slices) == (chips, devices, hosts, slices)
    assert hw.name == name
    assert hw.chip is CHIPS[hw.chip.name]
    assert hw.slice_chips * hw.slices == chips


# Names and shapes of Google Cloud; see the sources in hardware.toml.
@pytest.mark.parametrize(
    "name, shape, wrap",
    [
        ("tpu-v4-32", (2, 2, 4), (False, False, False)),  # Part of a cube: no ring.
        ("tpu-v4-128", (4, 4, 4), (True, True, True)),
        ("tpu-v4-4096", (8, 16, 16), (True, True, True)),
        ("tpu-v5p-64", (2, 4, 4), (False, False, False)),
        ("tpu-v5p-384", (4, 4, 12), (True, True, True)),
        ("tpu-v5p-512", (4, 8, 8), (True, True, True)),
        ("tpu-v5p-768", (4, 8, 12), (True, True, True)),
        ("tpu-v5p-1024", (8, 8, 8), (True, True, True)),
        ("tpu-v5p-1152", (4, 12, 12), (True, True, True)),
        ("tpu-v5p-3072", (8, 12, 16), (True, True, True)),
        ("tpu-v5p-6912", (12, 12, 24), (True, True, True)),
        ("tpu-v5p-9216", (12, 16, 24), (True, True, True)),
        ("tpu-v5p-11520", (12, 20, 24), (True, True, True)),
        ("tpu-v5p-12288", (16, 16, 24), (True, True, True)),
        ("tpu-v7x-640", (4, 4, 20), (True, True, True)),
        ("tpu-v7x-17920", (16, 20, 28), (True, True, True)),
        ("tpu-v7x-18432", (16, 24, 24), (True, True, True)),
        ("tpu-v5e-16", (4, 4), (False, False)),
        ("tpu-v5e-128", (8, 16), (False, True)),
        ("tpu-v5e-256", (16, 16), (True, True)),
        ("tpu-v6e-8", (2, 4), (False, False)),
        ("tpu-v6e-256", (16, 16), (True, True)),
        ("gpu-h100-256", (8,), (False,)),
    ],
)
def test_slices_have_the_shapes_that_vendors_give_them(name, shape, wrap):
    hw = hardware(name)
    assert (hw.shape, hw.wrap) == (shape, wrap)


@pytest.mark.parametrize("chip", TPUS, ids=by_name)
def test_every_size_of_a_tpu_is_a_shape_of_whole_hosts(chip):
    most = max([chip.torus.max_cubes * 64, *(math.prod(map(int, s.split("x"))) for s in chip.torus.shapes)])
    found = 0
    for number in range(1, 2 * chip.unit * 64 + 1):
        try:
            hw = hardware(f"{chip.name}-{number}")
        except ConfigError:
            continue
        found += 1
        assert hw.num_chips * chip.unit == number
        assert list(hw.shape[:-1]) == sorted(hw.shape[:-1])
        assert all(size % host == 0 for size, host in zip(hw.shape, hw.host_shape, strict=True))
    assert found >= 6
    assert hardware(f"{chip.name}-{most * chip.unit}").num_chips == most


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "tpu-v5q-512",
            "hardware 'tpu-v5q-512': there is no chip 'tpu-v5q'. Did you mean 'tpu-v5p'? There are: tpu-v4, ",
        ),
        ("h100-8", "hardware 'h100-8': there is no chip 'h100'. Did you mean 'gpu-h100'? There are: "),
        (
            "tpu-v6e-256-4",
            "hardware 'tpu-v6e-256-4': there is no chip 'tpu-v6e-256'. Several slices are written tpu-v6e-256x4.",
        ),
        (
            "gpu-h100",
            "hardware 'gpu-h100' is not CHIP-NUMBER, as in tpu-v5p-512, gpu-h100-256 or, of 2 slices, tpu-v5p-512x2. "
            "Say how many, as in gpu-h100-8.",
        ),
        (
            "cpu-0",
            "hardware 'cpu-0' is not CHIP-NUMBER, as in tpu-v5p-512, gpu-h100-256 or, of 2 slices, tpu-v5p-512x2.",
        ),
        (
            "tpu-v5p-500",
            "hardware 'tpu-v5p-500': tpu-v5p does not come in 500.\n"
            "  Use tpu-v5p-384 or tpu-v5p-512. The number counts cores, 2 to a chip.",
        ),
        ("tpu-v5e-3", "hardware 'tpu-v5e-3': tpu-v5e does not come in 3.\n  Use tpu-v5e-1 or tpu-v5e-4."),
        (
            "tpu-v6e-512",
            "hardware 'tpu-v6e-512': tpu-v6e does not come in 512.\n"
            "  Use tpu-v6e-256, or several slices: tpu-v6e-256x2.",
        ),
        ("gpu-h100-6", "hardware 'gpu-h100-6': gpu-h100 does not come in 6.\n  Use gpu-h100-4 or gpu-h100-8."),
        ("gpu-h100-100", "hardware 'gpu-h100-100': gpu-h100 does not come in 100.\n  Use gpu-h100-96 or gpu-h100-104."),
        (
            "gpu-gb200-76",
            "hardware 'gpu-gb200-76': gpu-gb200 does not come in 76.\n  Use gpu-gb200-72 or gpu-gb200-80.",
        ),
        (
            f"trn2-{10**15 + 1}",
            f"hardware 'trn2-{10**15 + 1}': trn2 does not come in {10**15 + 1}.\n  Use trn2-{10**15} or",
        ),
        (
            "gpu-h100-8x2",
            "hardware 'gpu-h100-8x2': only TPUs are asked for in slices.\n  Give the number of all chips: gpu-h100-16.",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_can(name, message):
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        hardware(name)


def test_sizes_of_gpus_are_parts_of_a_node_or_whole_nodes():
    sizes = []
    for number in range(1, 65):
        try:
            sizes.append(hardware(f"gpu-h100-{number}").num_chips)
        except ConfigError:
            continue
    assert sizes == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]


def test_hardware_is_a_value_that_travels_as_text():
    hw = hardware("tpu-v5p-512x2")
    assert from_json(to_json(hw)) == hw
    assert hash(hw) == hash(hardware("tpu-v5p-512x2"))


def test_where_a_price_is_not_public_there_is_none():
    assert hardware("gpu-gb200-72").price is None
    assert hardware("gpu-h100-8").price == pytest.approx(55.04)


def test_a_device_is_known_by_what_jax_calls_it():
    kinds = {
        "TPU v5": "tpu-v5p",
        "TPU v5 lite": "tpu-v5e",
        "NVIDIA H100 80GB HBM3": "gpu-h100",
        "NVIDIA GB200": "gpu-gb200",
    }
    for kind, name in kinds.items():
        assert chip_of(kind) is CHIPS[name]
    assert chip_of("NVIDIA H100 PCIe") is None  # Another chip, with another peak.
    targets = [chip.target.description for chip in CHIPS.values() if chip.target]
    assert all(chip_of(text) for text in targets)


@pytest.mark.parametrize(
    "name, below, above",
    [
        ("gpu-h100-24", "gpu-h100-16", "gpu-h100-32"),
        ("tpu-v5p-512", "tpu-v5p-384", "tpu-v5p-640"),
        ("tpu-v6e-16x2", "tpu-v6e-8x2", "tpu-v6e-32x2"),
    ],
)
def test_the_nearest_amounts_of_a_chip_come_first(name, below, above):
    less, more = nearest_hardware(hardware(name))
    assert (less[0].name, more[0].name) == (below, above)
