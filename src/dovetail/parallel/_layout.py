# SPDX-License-Identifier: Apache-2.0
"""`MeshLayout`: what a mesh says to modules, and where parameters are stored."""

import dataclasses
import functools
import math
from typing import Any

import jax
from jax import Array
from jax.sharding import PartitionSpec

from dovetail.config import ConfigError, did_you_mean
from dovetail.module import Axes, Collected, Key, Layers, Layout, ParamSpec

from ._exchange import Exchange, exchange
from ._mesh import Mesh
from ._pipeline import Pipelining, in_stages

_MeshAxes = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class MeshLayout(Layout):
    """The layout that the rules of a mesh make. The mesh itself is the ambient one, `jax.set_mesh(mesh.on())`."""

    mesh: Mesh
    local: frozenset[str] = frozenset()  # Mesh axes along which the code runs on each device's own part.
    staged: bool = False  # The code is a stage of a pipeline.

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        return {axis: size for axis, size in self.mesh.sizes.items() if size > 1}

    @property
    def pipelining(self) -> Pipelining | None:
        """How loops over layers are pipelined; None: they are not."""
        mesh, stages = self.mesh, self._sizes.get("pipeline", 1)
        if stages == 1:
            return None
        return Pipelining(stages, mesh.num_microbatches, mesh.rounds, mesh.schedule, "pipeline")

    @property
    def stage_axis(self) -> str | None:
        return "pipeline" if self.staged else None

    def loop(
        self, layers: Layers, path: str, count: int, carry: Any, each: Any, inputs: Any, key: Key
    ) -> tuple[Any, Collected] | None:
        return in_stages(self, layers, path, count, carry, each, inputs, key)

    def in_stage(self) -> "MeshLayout":
        """Returns the layout for code that runs as a stage of a pipeline, all of them side by side."""
        return dataclasses.replace(self, staged=True)

    @property
    def gathers(self) -> bool:
        return any(axis in self._sizes for axis in self.mesh.rules.gathered)

    def constrain(self, x: Array, axes: Axes) -> Array:
        return _laid(x, self.activation_partition(x.shape, axes), self)

    def activation_partition(self, shape: tuple[int, ...], axes: Axes) -> PartitionSpec:
        """Returns how an activation, or state, of this shape lies."""
        spec, used = list[_MeshAxes | None](), set[str]()
        for size, axis in zip(shape, axes, strict=True):
            wanted = (a for a in (self.activation_axes(axis) if axis else ()) if a not in used | self.local)
            found = _as_far_as_it_divides(size, tuple(wanted), self._sizes)
            used.update(found)
            spec.append(found or None)
        return PartitionSpec(*spec)

    def gather(self, value: Array, spec: ParamSpec) -> Array:
        if self.local:  # It was gathered on the way in.
            return value
        stored = self.stored_axes(spec)
        used = [tuple(axis for axis in axes if axis not in self.mesh.rules.gathered) for axes in stored]
        return _gather(value, _partition(used), _partition(stored)) if any(stored) else value

    def activation_axes(self, name: str) -> _MeshAxes:
        return self._lookup("activations", name)

    def parameter_axes(self, name: str, size: int | None = None) -> _MeshAxes:
        axes = self._lookup("parameters", name)
        if size is None or name not in self.mesh.rules.may_stay_whole:
            return axes
        return _as_far_as_it_divides(size, axes, self._sizes)

    def exchange(self, axis: str, sizes: Array, num_rows: int, *, room: float) -> Exchange | None:
        axes = self.parameter_axes(axis)
        return exchange(sizes, num_rows, axes, factor=room) if axes else None

    def stored_axes(self, spec: ParamSpec) -> tuple[_MeshAxes, ...]:
        found, used = list[_MeshAxes](), set[str]()
        # A vector is not worth gathering in every layer.
        vector = len(spec.shape) - spec.stack < 2
        for size, name in zip(spec.shape, spec.axes, strict=True):
            axes = tuple(axis for axis in (self.parameter_axes(name, size) if name else ()) if axis not in used)
            if vector:
                axes = tuple(axis for axis in axes if axis not in self.mesh.rules.gathered)
            used.update(axes)
            found.append(axes)
        return tuple(found)

    def inside(self, axes: frozenset[str]) -> "MeshLayout":
        return dataclasses.replace(self, local=self.local | axes)

    def partition(self, spec: ParamSpec) -> PartitionSpec:
        """Returns how a parameter is stored."""
        return _partition(self.stored_axes(spec))

    def shards(self, axes: _MeshAxes) -> int:
        """Returns into how many parts these mesh axes split something."""
        return math.prod(self._sizes.get(axis, 1) for axis in axes)

    def _lookup(self, table: str, name: str) -> _MeshAxes:
        rules = getattr(self.mesh.rules, table)
        if name not in rules:
            raise ConfigError(
                f"mesh.rules.{table} says nothing about the logical axis {name!r}.{did_you_mean(name, list(rules))}\n"
                f"  Add it, with no mesh axes to keep it whole. There are: {', '.join(rules)}."
            )
        taken = self.stage_axis  # The stages are along it.
        return tuple(axis for axis in rules[name] if axis in self._sizes and axis != taken)


def _laid(x: Array, spec: PartitionSpec, layout: MeshLayout) -> Array:
    """Constrains `x`, unless every device has all of it in any case."""
    free = layout.mesh.num_devices > layout.shards(tuple(layout.local))
    return jax.lax.with_sharding_constraint(x, spec) if free else x


def layout_of(mesh: Mesh) -> MeshLayout | None:
    """Returns the layout of a mesh; None for a single device, where there is nothing to lay out."""
    return MeshLayout(mesh) if mesh.num_devices > 1 else None


def decoding_layout(mesh: Mesh, *, split_rows: bool = True) -> MeshLayout | None:
    """Returns the layout of a mesh for calls of one token each, which no device can split: as `layout_of` otherwise.

    Args:
        split_rows: whether devices share the rows of a call; if not, there may be any number, and each has all.
    """
    table = mesh.rules.activations
    along = set(table["seq"])
    whole = {name: tuple(axis for axis in table[name] if axis not in along) for name in ("seq", "stream")}
    if not split_rows:
        rows = set(table["batch"])
        whole |= {"batch": (), "stream": tuple(axis for axis in whole["stream"] if axis not in rows)}
    return layout_of(mesh.set(rules=mesh.rules.set(activations={**table, **whole})))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(value: Array, used: PartitionSpec, stored: PartitionSpec) -> Array:
    """Lays a parameter out as it is used; its gradient as it is stored, so that it is summed no further than that."""
    # First as it is stored: else what is kept of it for the backward pass would lie as it is used.
    value = jax.lax.with_sharding_constraint(value, stored)
    return jax.lax.with_sharding_constraint(value, used)


def _gather_forward(value: Array, used: PartitionSpec, stored: PartitionSpec) -> tuple[Array, None]:
    return _gather(value, used, stored), None


def _gather_backward(used: PartitionSpec, stored: PartitionSpec, _: None, gradient: Array) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(gradient, stored),)


_gather.defvjp(_gather_forward, _gather_backward)


def _as_far_as_it_divides(size: int, axes: _MeshAxes, sizes: dict[str, Any]) -> _MeshAxes:
    """Returns the first of the axes, as many as divide `size`."""
    parts, kept = 1, list[str]()
    for axis in axes:
        parts *= sizes[axis]
        if size % parts:
            break
        kept.append(axis)
    return tuple(kept)


def _partition(axes: Any) -> PartitionSpec:
    return PartitionSpec(*(each or None for each in axes))
