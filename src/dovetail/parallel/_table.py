# SPDX-License-Identifier: Apache-2.0
"""Each parameter on a mesh, in print: what splits it, and how much of it a device holds."""

import math
from typing import Any, NamedTuple

from ._fit import flat_specs
from ._layout import MeshLayout
from ._mesh import Mesh


class Placed(NamedTuple):
    """A parameter on a mesh."""

    path: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # Logical.
    mesh_axes: tuple[tuple[str, ...], ...]  # Of each dimension.
    bytes_per_device: int


def placed(mesh: Mesh, specs: Any) -> list[Placed]:
    """Returns where each parameter of a tree of specs lies."""
    layout = MeshLayout(mesh)
    rows: list[Placed] = []
    for path, spec in flat_specs(specs, "model"):
        stored = layout.stored_axes(spec)
        parts = math.prod(layout.shards(axes) for axes in stored)
        rows.append(Placed(path, spec.shape, spec.axes, stored, spec.nbytes // parts))
    return rows


def placement_text(rows: list[Placed]) -> str:
    """Returns a table of parameters, and what a device holds of all of them."""
    head = ("parameter", "shape", "axes", "mesh axes", "bytes per device")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)) for row in cells]
    lines = [f"{line}  {row[-1].rjust(widths[-1])}" for line, row in zip(lines, cells, strict=True)]
    total = sum(row.bytes_per_device for row in rows)
    return "\n".join([*lines, f"total: {total:,} bytes of parameters per device"])


def _cells(row: Placed) -> tuple[str, ...]:
    axes = ", ".join(axis or "-" for axis in row.axes)
    mesh_axes = ", ".join("+".join(each) or "-" for each in row.mesh_axes)
    return row.path, str(row.shape), axes, mesh_axes, f"{row.bytes_per_device:,}"
