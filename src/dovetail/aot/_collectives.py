# SPDX-License-Identifier: Apache-2.0
"""What devices send each other in a step, read from the program that the compiler made."""

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ._hlo import Hlo, Instruction, sizes

_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


@dataclass(frozen=True)
class Collective:
    """A collective operation of a compiled step."""

    kind: str  # As XLA calls it: "all-gather", "reduce-scatter", ...
    axes: tuple[str, ...]  # Mesh axes along which devices take part; ("?",) if the groups are not along axes.
    count: int  # How often a step runs it.
    bytes: int  # Of its result on one device, each time; of its input for a reduce-scatter.
    asynchronous: bool
    path: str  # Where in the program it comes from, as JAX names it.


def collectives(text: str, mesh: Mapping[str, int]) -> list[Collective]:
    """Returns the collectives of a compiled program (`compiled.as_text()`) for a mesh, given by the sizes of its axes.

    Devices are numbered along the mesh in the order of its axes. Loops count as often as they run.
    """
    program, groups = Hlo(text), Groups(mesh)
    beside, seen = _beside(program), set[tuple[str | None, str]]()
    found: list[Collective] = []
    for name, body in program.computations.items():
        for each in body:
            kind = each.opcode.removesuffix("-start")
            if kind not in _KINDS or not program.runs.get(name):
                continue
            asynchronous = each.opcode.endswith("-start") or name in beside
            if beside.get(name) == "pieces":
                piece = each.attribute(r"channel_id=(\d+)"), each.op_name
                if piece in seen:
                    continue
                seen.add(piece)
            sent = groups.sent(each)
            assert sent is not None
            found.append(Collective(kind, sent.axes, program.runs[name], sent.bytes, asynchronous, each.op_name))
    return found


class Sent(NamedTuple):
    """What an instruction sends between devices."""

    kind: str  # As XLA calls it.
    axes: tuple[str, ...]  # As in `Collective`.
    bytes: int  # As in `Collective`.
    members: tuple[int, ...]  # The devices of one group, by their places in the mesh; of a permutation, one pair.


class Groups:
    """The groups of devices along the axes of a mesh, by which the text of a program says who takes part."""

    def __init__(self, mesh: Mapping[str, int]) -> None:
        self._mesh, self._groups = mesh, _groups_of_axes(mesh)

    def sent(self, each: Instruction) -> Sent | None:
        """Returns what an instruction sends, be it at once or started; None if it is no collective."""
        kind = each.opcode.removesuffix("-start")
        if kind not in _KINDS:
            return None
        members = _members(each.rest, math.prod(self._mesh.values()))
        axes = _axes(kind, members, self._groups, self._mesh)
        farthest = max(members, key=lambda group: max(group) - min(group))
        return Sent(kind, axes, _size(kind, each, len(members[0])), farthest)


def _beside(program: Hlo) -> dict[str, str]:
    """Returns the computations that run beside others, and how: as a whole, or fused into other work in pieces.

    Each of the pieces, into which TPUs split a collective, mentions it.
    """
    found: dict[str, str] = {}
    for each in program.instructions.values():
        for called in each.called:
            if "async_collective" in called or each.name.startswith("async-collective"):
                found[called] = "pieces"
            elif each.opcode in ("call-start", "async-start"):
                found[called] = "whole"
    for name, how in list(found.items()):
        found |= {below: how for each in program.computations.get(name, ()) for below in each.called}
    return found


def _size(kind: str, each: Instruction, group: int) -> int:
    """Returns the bytes of the result, or of the input of a reduce-scatter. One that starts lists its inputs first."""
    arrays = sizes(each.shape)
    if not each.opcode.endswith("-start") or kind in ("all-reduce",):
        return sum(arrays) * (group if kind == "reduce-scatter" else 1)
    count = len(each.operands)
    return sum(arrays[:count] if kind == "reduce-scatter" else arrays[count : 2 * count])


def _members(line: str, count: int) -> list[tuple[int, ...]]:
    """Returns the groups of devices that take part together; for a permutation, its pairs."""
    pairs = re.search(r"source_target_pairs=(\{\{.*?\}\})", line)
    listed = pairs or re.search(r"replica_groups=(\{\{.*?\}\})", line)
    if listed:
        return [tuple(group) for group in json.loads(listed.group(1).replace("{", "[").replace("}", "]"))]
    tiled = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if tiled:
        shape, dims = _numbers(tiled.group(1)), _numbers(tiled.group(2))
        order = _numbers(tiled.group(3)) if tiled.group(3) else range(len(dims))
        flat = list(_transposed(dims, order))
        width = shape[-1]
        return [tuple(flat[i : i + width]) for i in range(0, len(flat), width)]
    order = r"(?:(?:<=|, device_ids=\()\[([\d,]+)\](?:T\(([\d,]+)\))?\)?)?"
    named = re.search(rf"replica_groups=mesh\[(.*?)\]{order} \{{(.*?)\}}", line)
    if named:
        return _named_groups(*named.groups())
    return [tuple(range(count))]


def _named_groups(mesh: str, dims: str | None, order: str | None, axes: str) -> list[tuple[int, ...]]:
    """Reads groups along named axes of a mesh: `mesh['a'=2,'b'=4] {'b'}`, whose devices may be transposed."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    count = math.prod(sizes.values())
    source = _numbers(dims) if dims else [count]
    ids = list(_transposed(source, _numbers(order) if order else range(len(source))))
    chosen = re.findall(r"'([^']+)'", axes)
    places = itertools.product(*(range(size) for size in sizes.values()))
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, device in zip(places, ids, strict=True):
        rest = tuple(i for name, i in zip(sizes, place, strict=True) if name not in chosen)
        groups[rest].append(device)
    return [tuple(group) for group in groups.values()]


def _transposed(dims: list[int], order: Iterable[int]) -> Iterator[int]:
    """Yields 0, 1, 2, ... arranged in an array of these dimensions and transposed."""
    order = list(order)
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    for place in itertools.product(*(range(dims[i]) for i in order)):
        yield sum(index * strides[i] for i, index in zip(order, place, strict=True))


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def _groups_of_axes(mesh: Mapping[str, int]) -> dict[frozenset[frozenset[int]], tuple[str, ...]]:
    """Returns, for each choice of mesh axes, the groups of devices along them."""
    large = [axis for axis, size in mesh.items() if size > 1]
    places = list(itertools.product(*(range(size) for size in mesh.values())))
    found: dict[frozenset[frozenset[int]], tuple[str, ...]] = {}
    for count in range(1, len(large) + 1):
        for axes in itertools.combinations(large, count):
            groups: dict[tuple[int, ...], set[int]] = defaultdict(set)
            for device, place in enumerate(places):
                rest = tuple(i for axis, i in zip(mesh, place, strict=True) if axis not in axes)
                groups[rest].add(device)
            found[frozenset(map(frozenset, groups.values()))] = axes
    return found


def _axes(
    kind: str,
    members: list[tuple[int, ...]],
    groups: Mapping[frozenset[frozenset[int]], tuple[str, ...]],
    mesh: Mapping[str, int],
) -> tuple[str, ...]:
    if kind != "collective-permute":
        return groups.get(frozenset(map(frozenset, members)), ("?",))
    places = list(itertools.product(*(range(size) for size in mesh.values())))
    moved = {
        axis
        for source, target in members
        for axis, a, b in zip(mesh, places[source], places[target], strict=True)
        if a != b
    }
    return tuple(axis for axis in mesh if axis in moved)
