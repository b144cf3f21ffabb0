# SPDX-License-Identifier: Apache-2.0
"""Thousands of meshes at once: which divide a model and its batch, and what a device then holds of the parameters.

It is what `parallel.fits`, `state_bytes` and `gathered_bytes` say of one mesh, as arrays; tests hold them together.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.module import ParamSpec
from dovetail.parallel import MESH_AXES, BatchShape, Rules, divisors, flat_specs

from ._work import MATRIX_AXIS

Sizes = Mapping[str, np.ndarray]  # Of the mesh axes: one number for each mesh.

_TENSOR, _SEQ, _STAGES = 16, 8, 16  # The most parts of a layer, of a sequence and of a stack that are tried.
_STACKED = 0.9  # Of the parameters of layers, those that a pipeline has to split.


class Layouts(NamedTuple):
    """What meshes make of a model; each field has one entry for each mesh."""

    sizes: Sizes
    divides: np.ndarray  # Whether parameters and the lengths of rows can be split so.
    held: np.ndarray  # Bytes of parameters that a device stores.
    gathered: np.ndarray  # Bytes of the parameters of one layer of each loop while they are used, in 16 bits.

    def where(self, chosen: np.ndarray) -> "Layouts":
        """Returns some of them."""
        sizes = {axis: size[chosen] for axis, size in self.sizes.items()}
        return Layouts(sizes, self.divides[chosen], self.held[chosen], self.gathered[chosen])


def all_sizes(devices: int, matrices: int, loops: Mapping[int, float]) -> dict[str, np.ndarray]:
    """Returns the sizes of all meshes that are worth a look.

    Args:
        devices: that each mesh has.
        matrices: that a layer has side by side, of which devices may hold different ones.
        loops: that of `layers_in_loops`.
    """
    sizes = divisors(devices)
    allowed = {
        "tensor": [n for n in sizes if n <= _TENSOR],
        "seq": [n for n in sizes if n <= _SEQ and n.bit_count() == 1],
        MATRIX_AXIS: [n for n in sizes if matrices % n == 0],
        "pipeline": [n for n in sizes if n <= _STAGES and (n == 1 or splits_layers(loops, n))],
        "fsdp": sizes,
    }
    found: list[dict[str, int]] = [{}]
    for axis, options in allowed.items():
        found = [{**mesh, axis: n} for mesh in found for n in options if devices % (n * math.prod(mesh.values())) == 0]
    found = [{**mesh, "data": devices // math.prod(mesh.values())} for mesh in found]
    return {axis: np.array([mesh[axis] for mesh in found], np.int64) for axis in MESH_AXES}


def layers_in_loops(specs: Any) -> dict[int, float]:
    """Returns the share of the parameters of layers that is in loops over so many of them, by that number."""
    counts: Counter[int] = Counter()
    for _, spec in flat_specs(specs, ""):
        if spec.stack:
            counts[spec.shape[0]] += spec.nbytes
    total = sum(counts.values())
    return {length: size / total for length, size in counts.items()}


def splits_layers(loops: Mapping[int, float], pieces: int) -> bool:
    """Whether nearly all layers are in loops that can be cut into so many pieces, as the time of a pipeline assumes."""
    return sum(share for length, share in loops.items() if length % pieces == 0) >= _STACKED


def layouts(sizes: Sizes, specs: Any, rules: Rules, batch: BatchShape) -> Layouts:
    """Returns what meshes of these sizes make of the parameters, and whether they divide them and the rows' lengths."""
    count = len(sizes["data"])
    divides, held, gathered = np.ones(count, bool), np.zeros(count), np.zeros(count)
    for (shape, axes, stack, nbytes), times in Counter(map(_kind, _specs(specs))).items():
        parts, used = np.ones((len(shape), count)), np.ones((len(shape), count))
        _split(shape, axes, stack, sizes, rules, parts, used)
        divides &= np.all(np.array(shape)[:, None] % parts == 0, 0)
        held += times * nbytes / np.prod(parts, 0)
        if stack:  # In a loop over layers.
            gathered += times * 2 * math.prod(shape[1:]) / np.prod(used[1:], 0)
    for name, size in batch.lengths.items():
        divides &= size % parts_of(sizes, rules.activations[name]) == 0
    return Layouts(sizes, divides, held, gathered)


def _specs(tree: Any) -> list[ParamSpec]:
    return [spec for _, spec in flat_specs(tree, "")]


def _kind(spec: ParamSpec) -> tuple[tuple[int, ...], tuple[str | None, ...], int, int]:
    return tuple(spec.shape), tuple(spec.axes), spec.stack, spec.nbytes


def _split(
    shape: Sequence[int],
    axes: Sequence[str | None],
    stack: int,
    sizes: Sizes,
    rules: Rules,
    parts: np.ndarray,
    used: np.ndarray,
) -> None:
    """Fills in the parts of each dimension as it is stored, and as it is used: as `MeshLayout.stored_axes` does."""
    taken = {axis: np.zeros(parts.shape[1], bool) for axis in sizes}
    vector = len(shape) - stack < 2
    for dim, (size, name) in enumerate(zip(shape, axes, strict=True)):
        so_far, going = np.ones(parts.shape[1]), np.ones(parts.shape[1], bool)
        for axis in rules.parameters[name] if name else ():
            there = sizes[axis] > 1
            if name in rules.may_stay_whole:  # As far as it divides.
                so_far = so_far * np.where(there, sizes[axis], 1)
                going = going & (~there | (size % so_far == 0))
                there = there & going
            mine = there & ~taken[axis]
            if vector and axis in rules.gathered:
                continue
            taken[axis] |= mine
            split = np.where(mine, sizes[axis], 1)
            parts[dim] *= split
            used[dim] *= 1 if axis in rules.gathered else split


def parts_of(sizes: Sizes, axes: Sequence[str]) -> np.ndarray:
    """Returns into how many parts mesh axes split something."""
    return math.prod((sizes[axis] for axis in axes), start=np.ones(1, np.int64))
