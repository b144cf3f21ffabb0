# SPDX-License-Identifier: Apache-2.0
"""Whether a model and its batches fit on a mesh, and which meshes they would fit on. Nothing is compiled for that."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.config import ConfigError
from dovetail.module import ParamSpec

from ._layout import MeshLayout
from ._mesh import Mesh
from ._rules import MESH_AXES

_SHOWN = 8  # Problems in a message.
_NEAREST = 3  # Meshes that are proposed.


class BatchShape(NamedTuple):
    """What a step gets: rows, what they are made of, and into how many parts, one after the other, they are split."""

    rows: int
    lengths: Mapping[str, int] = {}  # By logical axis, as in `{"seq": 128}`: of a row.
    parts: int = 1


def fits(mesh: Mesh, specs: Any, batch: BatchShape) -> bool:
    """Whether parameters and batch can be split as the mesh says."""
    return not any(True for _ in _problems(mesh, specs, batch))


def check_fit(mesh: Mesh, specs: Any, batch: BatchShape) -> None:
    """Raises if the parameters or the batch cannot be split as the mesh says; the message has the nearest that can."""
    mesh.check()
    problems = list(_problems(mesh, specs, batch))
    if not problems:
        return
    more = [f"... and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    lines = "".join(f"\n  {line}" for line in (*problems[:_SHOWN], *more))
    near = [other.text() for other in itertools.islice(_nearest(mesh, specs, batch), _NEAREST)]
    count = mesh.num_devices
    advice = f"No mesh of {count} devices fits this model and batch. Use fewer devices, "
    advice += f"or an input.batch_size that is a multiple of {count * batch.parts}, for data={count}."
    if near:
        advice = f"The nearest of {mesh.num_devices} devices that fit: {'; '.join(near)}."
    raise ConfigError(f"the mesh {mesh.text()} does not fit:{lines}\n  {advice}")


def _problems(mesh: Mesh, specs: Any, batch: BatchShape) -> Iterator[str]:
    layout, flat = MeshLayout(mesh), dict(flat_specs(specs, "model"))
    for path, spec in flat.items():
        yield from _uneven(path, spec, layout)
    yield from _uneven_batch(layout, batch)
    loops = sorted({spec.shape[0] for spec in flat.values() if spec.stack})
    pieces = mesh.sizes["pipeline"] * mesh.rounds
    if mesh.sizes["pipeline"] > 1 and not loops:
        yield "pipeline: the model has no loop over layers that could be split."
    elif mesh.sizes["pipeline"] > 1 and all(count % pieces for count in loops):
        rounds = f" x rounds ({mesh.rounds})" if mesh.rounds > 1 else ""
        counts, fits = " or ".join(map(str, loops)), ", ".join(map(str, divisors(loops[-1])))
        yield (
            f"pipeline ({mesh.sizes['pipeline']}){rounds} does not divide the number of layers, {counts}."
            f" Sizes that do: {fits}."
        )


def _uneven(path: str, spec: ParamSpec, layout: MeshLayout) -> Iterator[str]:
    for dim, (size, name, axes) in enumerate(zip(spec.shape, spec.axes, layout.stored_axes(spec), strict=True)):
        parts = layout.shards(axes)
        if size % parts:
            fits = ", ".join(map(str, divisors(size)))
            yield (
                f"{path}: dimension {dim} ({name}) has size {size}, which {_product(axes)} = {parts} does not divide."
                f" Sizes that do: {fits}."
            )


def _uneven_batch(layout: MeshLayout, batch: BatchShape) -> Iterator[str]:
    rows = layout.activation_axes("batch")
    factors = {
        _product(rows): layout.shards(rows),
        "num_microbatches": batch.parts,
        "mesh.microbatches": layout.mesh.num_microbatches,
    }
    needed = math.prod(factors.values())
    if batch.rows % needed:
        shown = " x ".join(f"{name} ({count})" for name, count in factors.items() if count > 1)
        yield f"input.batch_size is {batch.rows}, expected a multiple of {needed} = {shown}."
    for name, size in batch.lengths.items():
        axes = layout.activation_axes(name)
        if size % layout.shards(axes):
            multiple = f"{_product(axes)} = {layout.shards(axes)}"
            yield f"input: rows have size {size} along {name!r}, expected a multiple of {multiple}."


def _nearest(mesh: Mesh, specs: Any, batch: BatchShape) -> Iterator[Mesh]:
    """Yields meshes of as many devices that fit, those with the most alike sizes first."""
    flat = list(flat_specs(specs, "model"))
    wanted = [mesh.sizes[axis] for axis in MESH_AXES]

    def distance(sizes: tuple[int, ...]) -> float:
        return sum(abs(math.log2(a / b)) for a, b in zip(sizes, wanted, strict=True))

    for sizes in sorted(factorisations(mesh.num_devices, len(MESH_AXES)), key=distance):
        other = mesh.set(**dict(zip(MESH_AXES, sizes, strict=True)), across_slices={})
        if other.rounds > 1 and other.num_microbatches < other.pipeline:
            continue
        if other.expert > 1 and mesh.expert == 1 and not any("expert" in spec.axes for _, spec in flat):
            continue
        if fits(other, specs, batch):
            yield other


def factorisations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields all ways to write a number as a product of `count` factors, in order."""
    if count == 1:
        yield (number,)
        return
    for first in divisors(number):
        yield from ((first, *rest) for rest in factorisations(number // first, count - 1))


def flat_specs(tree: Any, path: str) -> Iterator[tuple[str, ParamSpec]]:
    """Yields all specs of a tree, with their paths."""
    for name, below in tree.items():
        place = f"{path}.{name}"
        if isinstance(below, ParamSpec):
            yield place, below
        else:
            yield from flat_specs(below, place)


def divisors(number: int) -> list[int]:
    """Returns all numbers that divide a number."""
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def _product(axes: tuple[str, ...]) -> str:
    return " x ".join(axes) or "1"
