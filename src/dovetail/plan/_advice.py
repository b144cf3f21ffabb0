# SPDX-License-Identifier: Apache-2.0
"""What to change where no mesh spreads a run over some hardware: sizes that would fit, found by trying them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dovetail.hardware import Hardware, nearest_hardware
from dovetail.parallel import BatchShape, Mesh, fits

Meshes = Callable[[Hardware], Iterable[Mesh]]


def advice(meshes: Meshes, specs: Any, batch: BatchShape, hardware: Hardware) -> str:
    """Returns sizes of a batch, and amounts of the same chip, that fit: the nearest below and above."""
    sizes = _batch_sizes(meshes(hardware), specs, batch)
    names = [found.name for found in _hardware(meshes, specs, batch, hardware)]
    options = [f"input.batch_size={' or '.join(map(str, sizes))}"] if sizes else []
    options += [f"other hardware: {' or '.join(names)}"] if names else []
    return f"Use {', or '.join(options)}." if options else "Use a model whose layers and heads can be split further."


def _batch_sizes(meshes: Iterable[Mesh], specs: Any, batch: BatchShape) -> list[int]:
    """Returns the sizes nearest to the batch that the best mesh can split, if it takes less than twice as many rows."""
    for mesh in meshes:
        parts = mesh.sizes["data"] * mesh.sizes["fsdp"] * mesh.sizes["expert"] * mesh.num_microbatches
        below = batch.rows // parts * parts
        if below + parts <= 2 * batch.rows and fits(mesh, specs, BatchShape(parts, batch.lengths)):
            return [size for size in (below, below + parts) if size]
    return []


def _hardware(meshes: Meshes, specs: Any, batch: BatchShape, hardware: Hardware) -> Iterator[Hardware]:
    for others in nearest_hardware(hardware):  # Less, then more.
        found = (other for other in others if any(fits(mesh, specs, batch) for mesh in meshes(other)))
        yield from [first] if (first := next(found, None)) else []
