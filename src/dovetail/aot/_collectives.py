# SPDX-License-Identifier: Apache-2.0
"""What devices send each other in a step, read from the program that the compiler made."""

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:to_apply|calls|body|branch_computations|true_computation|false_computation)=\{?([^,}]+(?:, %[^,}]+)*)\}?"
)
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONSTANT = re.compile(r"s32\[\]\S* constant\((\d+)\)")


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
    bodies = _computations(text)
    runs = _runs(bodies)
    groups = _groups_of_axes(mesh)
    found: list[Collective] = []
    for name, lines in bodies.items():
        for line in lines:
            match = _INSTRUCTION.match(line)
            kind = match.group(3).removesuffix("-start") if match else ""
            if match is None or kind not in _KINDS or not runs.get(name):
                continue
            asynchronous = match.group(3).endswith("-start")
            size = _size(match.group(2), last=asynchronous)
            members = _members(line, math.prod(mesh.values()))
            if kind == "reduce-scatter":
                size *= len(members[0])
            axes = _axes(kind, members, groups, mesh)
            path = re.search(r'op_name="([^"]*)"', line)
            found.append(Collective(kind, axes, runs[name], size, asynchronous, path.group(1) if path else ""))
    return found


def _computations(text: str) -> dict[str, list[str]]:
    """Returns the lines of each computation; the entry is called "ENTRY"."""
    bodies: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        start = _COMPUTATION.match(line)
        if start and " = " not in line.split("(", 1)[0]:
            current = bodies.setdefault("ENTRY" if start.group(1) else start.group(2), [])
        else:
            current.append(line)
    return bodies


def _runs(bodies: Mapping[str, list[str]]) -> dict[str, int]:
    """Returns how often a step runs each computation."""
    runs: dict[str, int] = defaultdict(int)

    def visit(name: str, times: int) -> None:
        runs[name] += times
        for line in bodies.get(name, ()):
            called = [each.strip().lstrip("%") for group in _CALLED.findall(line) for each in group.split(",")]
            condition = _CONDITION.search(line)
            trips = _trips(line, bodies.get(condition.group(1), [])) if condition else 1
            for each in called:
                if each in bodies:
                    visit(each, times * trips)

    visit("ENTRY", 1)
    return runs


def _trips(line: str, condition: Iterable[str]) -> int:
    """Returns how often a loop runs: as the compiler says, or by the number that its condition compares with."""
    known = _TRIPS.search(line)
    if known:
        return int(known.group(1))
    bounds = [int(n) for other in condition for n in _CONSTANT.findall(other)]
    return max(bounds, default=1)


def _size(shape: str, *, last: bool) -> int:
    arrays = [_bytes(dtype) * math.prod(int(n) for n in dims.split(",") if n) for dtype, dims in _ARRAY.findall(shape)]
    return int(arrays[-1] if last and arrays else sum(arrays))


def _bytes(dtype: str) -> float:
    bits = re.search(r"\d+", dtype)
    return int(bits.group()) / 8 if bits else 1


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
    named = re.search(r"replica_groups=mesh\[(.*?)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?)? \{(.*?)\}", line)
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
