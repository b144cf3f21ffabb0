# SPDX-License-Identifier: Apache-2.0
"""`Mesh`: how many devices along which axis, as part of a config."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType

from dovetail.config import ConfigBase, ConfigError, did_you_mean

from ._cpu_collectives import mend_cpu_collectives
from ._cpu_programs import keep_programs_of_this_process
from ._rules import MESH_AXES, Rules

_AXIS = re.compile(r"([a-z_]+)=(?:(\d+)x)?(\d+)")


class Mesh(ConfigBase):
    """The devices of a run, arranged along six axes, and what each axis splits.

    | axis | splits |
    | --- | --- |
    | `pipeline` | the layers, into stages |
    | `data` | the batch |
    | `fsdp` | the batch, and the storage of parameters and optimizer state |
    | `expert` | the batch, and the experts |
    | `seq` | the sequence |
    | `tensor` | heads, hidden units and words |

    `across_slices` gives the part of an axis that goes over the slow network, between slices or nodes: `data=4` with
    `across_slices={"data": 2}` is 8 devices along `data`, 4 in each of 2 slices.
    """

    pipeline: int = 1
    data: int = 1
    fsdp: int = 1
    expert: int = 1
    seq: int = 1
    tensor: int = 1
    across_slices: Mapping[str, int] = {}
    renamed: ClassVar[Mapping[str, str]] = {"outer": "across_slices"}
    rules: Rules = Rules()
    attention: Literal["gather", "ring"] = "gather"  # How queries meet the keys of other devices along `seq`.
    schedule: Literal["forward_first", "one_forward_one_backward"] = "forward_first"  # Of the pipeline.
    microbatches: int | None = None  # Of the pipeline, of what it gets at once; None: one for each stage.
    rounds: int = 1  # Of the pipeline: pieces of the layers that each stage has; more of them, a shorter bubble.

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis, inner and outer part together."""
        return {axis: getattr(self, axis) * self.across_slices.get(axis, 1) for axis in MESH_AXES}

    @property
    def num_devices(self) -> int:
        """How many devices it takes."""
        return math.prod(self.sizes.values())

    @property
    def num_microbatches(self) -> int:
        """Of the pipeline; 1 where there is none."""
        stages = self.sizes["pipeline"]
        return 1 if stages == 1 else self.microbatches or stages

    def check(self) -> None:
        """Raises if a value makes no sense, whatever the model."""
        for axis in MESH_AXES:
            if getattr(self, axis) < 1:
                raise ConfigError(f"mesh.{axis} is {getattr(self, axis)}, expected at least 1.")
        for axis, size in self.across_slices.items():
            _expect_axis(axis, "mesh.across_slices")
            if size < 1:
                raise ConfigError(f"mesh.across_slices.{axis} is {size}, expected at least 1.")
        for table in ("parameters", "activations"):
            for name, axes in getattr(self.rules, table).items():
                for axis in axes:
                    _expect_axis(axis, f"mesh.rules.{table}.{name}")
        for field in ("microbatches", "rounds"):
            if getattr(self, field) is not None and getattr(self, field) < 1:
                raise ConfigError(f"mesh.{field} is {getattr(self, field)}, expected at least 1.")
        stages = self.sizes["pipeline"]
        if self.rounds > 1 and self.schedule == "one_forward_one_backward":
            raise ConfigError(f"mesh.rounds is {self.rounds}, but one_forward_one_backward has one round. Set it to 1.")
        if self.rounds > 1 and self.num_microbatches < stages:
            raise ConfigError(
                f"mesh.microbatches is {self.num_microbatches}, fewer than the stages ({stages}), with {self.rounds} "
                f"rounds.\n  A microbatch must be back before its next round: use at least {stages}."
            )

    def on(self, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
        """Returns the mesh of these devices, by default the first of all that there are."""
        self.check()
        devices, needed = list(jax.devices() if devices is None else devices), self.num_devices
        if len(devices) < needed or (jax.process_count() > 1 and len(devices) > needed):
            raise ConfigError(
                f"mesh {self.text()} takes {needed} devices, but there are {len(devices)} ({devices[0].platform}).\n"
                f"  Use a mesh of {len(devices)}."
            )
        devices = devices[:needed]
        if devices[0].platform == "cpu":
            mend_cpu_collectives()
            keep_programs_of_this_process()
        inner = [getattr(self, axis) for axis in MESH_AXES]
        outer = [self.across_slices.get(axis, 1) for axis in MESH_AXES]
        return jax.sharding.Mesh(_arranged(inner, outer, devices), MESH_AXES, axis_types=(AxisType.Auto,) * len(inner))

    def text(self) -> str:
        """Returns the sizes as the command line takes them: `data=2,tensor=4`."""
        named = [axis for axis, size in self.sizes.items() if size > 1]
        outer = {axis: f"{size}x" for axis, size in self.across_slices.items()}
        return ",".join(f"{axis}={outer.get(axis, '')}{getattr(self, axis)}" for axis in named) or "data=1"


def shrink(mesh: Mesh, count: int) -> Mesh:
    """Returns the largest mesh of at most `count` devices whose axes divide those of `mesh`, so that it fits as well.

    Of those, one that leaves as much as it can of what splits parameters, and stages of a pipeline last.
    """
    if mesh.num_devices <= count:
        return mesh
    sizes = [[n for n in range(1, size + 1) if size % n == 0] for size in mesh.sizes.values()]
    meshes = (dict(zip(MESH_AXES, each, strict=True)) for each in itertools.product(*sizes))
    small = (each for each in meshes if math.prod(each.values()) <= count)
    best = max(small, key=lambda each: (math.prod(each.values()), -each["data"] * each["seq"], -each["pipeline"]))
    pipeline = {} if best["pipeline"] > 1 else {"rounds": 1, "microbatches": None}
    return mesh.set(**best, **pipeline, across_slices={})


def parse_mesh(text: str, base: Mesh | None = None) -> Mesh:
    """Returns the mesh that a text such as `data=2,tensor=4` names; `data=2x4` is 2 slices with 4 devices each.

    Axes that the text does not name have size 1; what else `base` sets stays.
    """
    inner, outer = dict[str, int](dict.fromkeys(MESH_AXES, 1)), dict[str, int]()
    for part in filter(None, text.replace(" ", "").split(",")):
        match = _AXIS.fullmatch(part)
        if match is None:
            raise ConfigError(f"mesh: {part!r} is not AXIS=SIZE or AXIS=SLICESxSIZE, as in data=2,fsdp=2x4.")
        axis, slices, size = match.groups()
        _expect_axis(axis, "mesh")
        inner[axis] = int(size)
        if slices is not None:
            outer[axis] = int(slices)
    mesh = (base or Mesh()).set(**inner, across_slices=outer)
    mesh.check()
    return mesh


def _expect_axis(axis: str, where: str) -> None:
    if axis not in MESH_AXES:
        hint, known = did_you_mean(axis, MESH_AXES), ", ".join(MESH_AXES)
        raise ConfigError(f"{where}: there is no mesh axis {axis!r}.{hint} There are: {known}.")


def _arranged(inner: Sequence[int], outer: Sequence[int], devices: list[Any]) -> np.ndarray:
    """Returns the devices as an array, neighbours close to each other where the hardware says what is close."""
    if devices[0].platform == "cpu":
        pairs = [axis + part * len(inner) for axis in range(len(inner)) for part in (0, 1)]
        split = np.array(devices).reshape([*outer, *inner]).transpose(pairs)
        return split.reshape([a * b for a, b in zip(outer, inner, strict=True)])
    try:
        return _on_links(inner, outer, devices, split=False)
    except NotImplementedError:  # No axis has as many devices as a dimension of the torus: take parts of dimensions.
        return _on_links(inner, outer, devices, split=True)


def _on_links(inner: Sequence[int], outer: Sequence[int], devices: list[Any], *, split: bool) -> np.ndarray:
    """Returns the devices so that neighbours have links; `split`: an axis may be a part of a dimension of a torus."""
    if math.prod(outer) == 1:
        return mesh_utils.create_device_mesh(inner, devices, allow_split_physical_axes=split)
    one_slice = len({getattr(device, "slice_index", 0) for device in devices}) == 1
    return mesh_utils.create_hybrid_device_mesh(
        inner, outer, devices, process_is_granule=one_slice, allow_split_physical_axes=split
    )
