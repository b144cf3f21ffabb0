# SPDX-License-Identifier: Apache-2.0
"""The hardware catalogue: chips, from `hardware.toml`, and how many of them a name such as `tpu-v5p-512` asks for."""

import fnmatch
import importlib.resources
import itertools
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from dovetail.config import REQUIRED, ConfigBase, ConfigError, did_you_mean

from ._cluster import Cluster, Offer, read_cluster

Shape = tuple[int, ...]

_NAME = re.compile(r"(?P<chip>.+)-(?P<size>[1-9]\d*)(?:x(?P<slices>[1-9]\d*))?")
_CUBE = 4  # Larger slices of 3-D tori are built of cubes of 4x4x4 chips, with optical links between their faces.
_RING = 16  # Of 2-D tori, only a dimension of this length has links from its end to its beginning.


class Torus(ConfigBase):
    """How TPUs are linked to their neighbours, and what their compiler calls them."""

    compiler_name: str = REQUIRED  # Of the chip, and
    chip_config: str = REQUIRED  # of how its cores work together.
    shapes: Mapping[str, str] = REQUIRED  # Of slices that are no cubes, each with the shape of a host.
    max_cubes: int = 0  # Of the largest slice that is built of cubes.


class Target(ConfigBase):
    """What the compiler for NVIDIA GPUs asks about one; see `gpu_target`."""

    description: str = REQUIRED
    capability: Sequence[int] = REQUIRED  # Major and minor.
    clock_ghz: float = REQUIRED
    matrix_clock_ghz: float = REQUIRED
    matrix_ops: Mapping[str, int] = REQUIRED  # Multiply-adds a clock of one of the 4 matrix units of a core.
    fpus_per_core: int = REQUIRED
    l2_bytes: int = REQUIRED
    shared_bytes_per_core: int = REQUIRED
    shared_bytes_per_block: int = REQUIRED


class SlurmNames(ConfigBase):
    """What clusters that run Slurm usually call a chip."""

    gres: str = REQUIRED  # The generic resource, as in "gpu:h100", of which a host has so many.


class Chip(ConfigBase):
    """A kind of chip: one table of `hardware.toml`, which says more about its figures. None is what is not known."""

    name: str = REQUIRED  # What names of hardware start with: `tpu-v5p`.
    vendor: str = REQUIRED  # What its maker calls it.
    platform: Literal["tpu", "cuda", "rocm", "neuron", "cpu"] = REQUIRED
    kinds: Sequence[str] = ()  # What JAX calls a device of it, with * for any characters.
    cores: int | None = None  # As its maker counts them.
    clock: float | None = None  # Cycles a second, of what counts in cycles: the compiler for TPUs.
    devices: int = 1  # That JAX sees in a chip.
    counts: Literal["chips", "cores"] = "chips"  # What the number in a name counts.
    host: int | None = None  # Chips of a host; of TPUs, the torus says. None: one host has all.
    domain: int | None = None  # Chips that fast links join.
    peak: Mapping[str, float] = {}  # FLOP/s by dtype; float8 is any of its formats.
    family: str | None = None  # Of chips that reach the same share of their peak; None: it has none but itself.
    hbm_bytes: int | None = None  # That a program can have.
    hbm_bandwidth: float | None = None  # Bytes/s.
    links: int | None = None  # Fast ones, to other chips.
    link_bandwidth: float | None = None  # Bytes/s of one of them, each way.
    network: float | None = None  # Bytes/s of its share of the network between slices, each way.
    watts: float | None = None  # At full load.
    price: float | None = None  # US dollars an hour, on demand.
    torus: Torus | None = None
    target: Target | None = None
    slurm: SlurmNames | None = None
    kubernetes: Mapping[str, Cluster] = {}  # By provider: gke, eks.
    skypilot: Offer | None = None
    source: Mapping[str, Sequence[str]] = {}  # Of the figures, by group.

    @property
    def unit(self) -> int:
        """How many of what the number in a name counts are one chip."""
        return self.cores if self.counts == "cores" and self.cores else 1


class Hardware(ConfigBase):
    """A named amount of chips: what a run gets.

    A slice is a group of chips with fast links to each other: of TPUs a torus, of GPUs a node or a rack. The network
    joins the slices.
    """

    name: str = REQUIRED
    chip: Chip = REQUIRED
    shape: Shape = REQUIRED  # Chips of a slice, along each dimension of a torus.
    host_shape: Shape = REQUIRED  # Chips of a host, along the same dimensions.
    slices: int = 1

    @property
    def slice_chips(self) -> int:
        """Chips of a slice."""
        return math.prod(self.shape)

    @property
    def num_chips(self) -> int:
        """Chips of all slices."""
        return self.slice_chips * self.slices

    @property
    def num_devices(self) -> int:
        """Devices of all slices, as JAX counts them."""
        return self.num_chips * self.chip.devices

    @property
    def num_hosts(self) -> int:
        """Hosts of all slices."""
        return self.num_chips // math.prod(self.host_shape)

    @property
    def wrap(self) -> tuple[bool, ...]:
        """Which dimensions of a slice are rings: the last chip has a link to the first."""
        if self.chip.torus is None:
            return (False,) * len(self.shape)
        if self.chip.torus.max_cubes:
            return (all(size % _CUBE == 0 for size in self.shape),) * len(self.shape)
        return tuple(size == _RING for size in self.shape)

    @property
    def price(self) -> float | None:
        """US dollars an hour, on demand; None where no price is public."""
        return None if self.chip.price is None else self.chip.price * self.num_chips


def _chips() -> dict[str, Chip]:
    text = importlib.resources.files("dovetail.hardware").joinpath("hardware.toml").read_text("utf-8")
    parts: dict[str, Callable[[Any], Any]] = {
        "torus": lambda table: Torus(**table),
        "target": lambda table: Target(**table),
        "slurm": lambda table: SlurmNames(**table),
        "kubernetes": lambda tables: {provider: read_cluster(table) for provider, table in tables.items()},
        "skypilot": lambda table: Offer(**table),
    }
    chips: dict[str, Chip] = {}
    for name, table in tomllib.loads(text).items():
        fields: dict[str, Any] = {key: parts[key](value) if key in parts else value for key, value in table.items()}
        chips[name] = Chip(name=name, **fields)
    return chips


CHIPS: Mapping[str, Chip] = _chips()


def chip_of(kind: str) -> Chip | None:
    """Returns the chip of a device that calls itself so (`device_kind`); None if it is in no table.

    >>> chip_of("TPU v5 lite").name
    'tpu-v5e'
    """
    return next((chip for chip in CHIPS.values() if any(fnmatch.fnmatchcase(kind, each) for each in chip.kinds)), None)


def hardware(name: str) -> Hardware:
    """Returns the hardware of a name: CHIP-NUMBER, or CHIP-NUMBERxSLICES for several slices of TPUs.

    The number is what the vendor's names count: TensorCores of `tpu-v4`, `tpu-v5p` and `tpu-v7x`, else chips.

    >>> hardware("tpu-v5p-512").shape
    (4, 8, 8)
    >>> hardware("tpu-v6e-256x2").num_chips
    512
    >>> hardware("gpu-h100-256").slices
    32
    """
    match = _NAME.fullmatch(name)
    if match is None:
        hint = f" Say how many, as in {name}-8." if name in CHIPS else ""
        raise ConfigError(
            f"hardware {name!r} is not CHIP-NUMBER, as in tpu-v5p-512, gpu-h100-256 or, of 2 slices, tpu-v5p-512x2."
            f"{hint or did_you_mean(name, CHIPS)}"
        )
    if match["chip"] not in CHIPS:
        hint, inner = did_you_mean(match["chip"], CHIPS), _NAME.fullmatch(match["chip"])
        if inner is not None and inner["chip"] in CHIPS:
            hint = f" Several slices are written {match['chip']}x{match['size']}."
        raise ConfigError(
            f"hardware {name!r}: there is no chip {match['chip']!r}.{hint} There are: {', '.join(CHIPS)}."
        )
    chip, size = CHIPS[match["chip"]], int(match["size"])
    if chip.torus is None and match["slices"]:
        raise ConfigError(
            f"hardware {name!r}: only TPUs are asked for in slices.\n"
            f"  Give the number of all chips: {chip.name}-{size * int(match['slices'])}."
        )
    slices, shape, host = _arrangement(name, chip, size)
    return Hardware(name=name, chip=chip, shape=shape, host_shape=host, slices=slices * int(match["slices"] or 1))


def nearest_hardware(hw: Hardware) -> tuple[list[Hardware], list[Hardware]]:
    """Returns smaller and larger amounts of the same chip, each time the nearest first. Slices stay as many."""
    match = _NAME.fullmatch(hw.name)
    assert match is not None
    size, slices = int(match["size"]), f"x{match['slices']}" if match["slices"] else ""
    near = _sizes_near(hw.chip, size)
    below, above = [n for n in reversed(near) if n < size], [n for n in near if n > size]

    def named(sizes: list[int]) -> list[Hardware]:
        return [hardware(f"{hw.chip.name}-{n}{slices}") for n in sizes]

    return named(below), named(above)


def _arrangement(name: str, chip: Chip, size: int) -> tuple[int, Shape, Shape]:
    """Returns the number of slices, the shape of one, and that of a host."""
    found = _switched(chip, size) if chip.torus is None else _in_torus(chip, size)
    if found is not None:
        return found
    options = _sizes_near(chip, size)
    below, above = [n for n in options if n < size][-1:], [n for n in options if n > size][:1]
    near = " or ".join(f"{chip.name}-{n}" for n in below + above)
    more = "" if above else f", or several slices: {near}x2"
    counted = f" The number counts cores, {chip.unit} to a chip." if chip.unit > 1 else ""
    raise ConfigError(f"hardware {name!r}: {chip.name} does not come in {size}.\n  Use {near}{more}.{counted}")


def _switched(chip: Chip, size: int) -> tuple[int, Shape, Shape] | None:
    """Of chips that all see each other: a part of a host is a power of two; slices are alike, and over half full."""
    if chip.host is None or chip.domain is None:
        return 1, (size,), (size,)
    if size <= chip.host:
        return (1, (size,), (size,)) if size.bit_count() == 1 else None
    if size <= chip.domain:
        return (1, (size,), (chip.host,)) if size % chip.host == 0 else None
    alike = range(chip.domain, chip.domain // 2, -chip.host)
    return next(((size // chips, (chips,), (chip.host,)) for chips in alike if size % chips == 0), None)


def _in_torus(chip: Chip, size: int) -> tuple[int, Shape, Shape] | None:
    """Of few chips, a shape of the table; of more, whole cubes in the most compact arrangement."""
    assert chip.torus is not None
    chips, rest = divmod(size, chip.unit)
    for shape, host in chip.torus.shapes.items():
        if math.prod(_parse(shape)) == chips and not rest:
            return 1, _parse(shape), _parse(host)
    if size not in _sizes_near(chip, size):
        return None
    cubes = chips // _CUBE**3
    divisors = [n for n in range(1, cubes + 1) if cubes % n == 0]
    boxes = [box for box in itertools.combinations_with_replacement(divisors, 3) if math.prod(box) == cubes]
    return 1, tuple(_CUBE * side for side in min(boxes, key=sum)), (2, 2, 1)


def _sizes_near(chip: Chip, size: int) -> list[int]:
    """Returns numbers that names of this chip can have, in order: the next below and above `size` among them."""
    if chip.torus is None:
        reach = chip.domain or 1
        return [n for n in range(max(1, size - reach), size + reach + 1) if _switched(chip, n)]
    few = sorted(math.prod(_parse(shape)) for shape in chip.torus.shapes)
    many = [cubes * _CUBE**3 for cubes in range(1, chip.torus.max_cubes + 1)]
    return [chips * chip.unit for chips in few + many]


def _parse(shape: str) -> Shape:
    return tuple(int(size) for size in shape.split("x"))
