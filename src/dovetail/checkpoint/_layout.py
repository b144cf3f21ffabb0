# SPDX-License-Identifier: Apache-2.0
"""Who holds what: how the arrays of a step are dealt to processes, so that each byte is written and read once.

An array is cut by its sharding into the cells of a grid. The cells that the same processes hold make a *group*; its
bytes, cell after cell and array after array, are one stream, cut into as many even parts as the group has processes, at
rows of the first dimension. Each process writes its part; who reads finds it by the same rule. So nothing has to be
listed for each array and each process: a step keeps the groups, of which there are few kinds, and a grid per array.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

_LEAST = 1 << 20  # Bytes that are worth a file of their own: fewer of a group are not dealt to more processes.


class Group(NamedTuple):
    """Cells, by number in C order, that are all held by the same processes."""

    cells: tuple[int, ...]
    processes: tuple[int, ...]


class Layout:
    """Groups that have each cell once. Equal layouts are one object, so that comparing them takes no time."""

    _all: ClassVar[dict[tuple[Group, ...], "Layout"]] = {}

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self.groups = groups
        self._group_with = {cell: group for group in groups for cell in group.cells}

    @classmethod
    def of(cls, groups: tuple[Group, ...]) -> "Layout":
        """Returns the layout of these groups."""
        return cls._all.setdefault(groups, cls(groups))

    def group_with(self, cell: int) -> Group:
        """Returns the group that has a cell."""
        return self._group_with[cell]

    @property
    def is_even(self) -> bool:
        """Whether each process is in one group, and all groups have as many cells and as many processes."""
        holders = [process for group in self.groups for process in group.processes]
        kinds = {(len(group.cells), len(group.processes)) for group in self.groups}
        return len(set(holders)) == len(holders) and len(kinds) == 1


@dataclasses.dataclass(frozen=True)
class Place:
    """An array as it is written, and how it lies on processes."""

    shape: tuple[int, ...]
    dtype: str
    grid: tuple[int, ...]  # The number of cells in each dimension.
    layout: Layout

    @property
    def cell_shape(self) -> tuple[int, ...]:
        """Returns the shape of each cell."""
        return tuple(size // count for size, count in zip(self.shape, self.grid, strict=True))

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of a row of a cell: of all of it but its first dimension."""
        return math.prod(self.cell_shape[1:]) * jnp.dtype(self.dtype).itemsize

    @property
    def rows(self) -> int:
        """Returns the number of rows of a cell."""
        return self.cell_shape[0] if self.shape else 1

    def start_of(self, cell: int) -> tuple[int, ...]:
        """Returns where in the array a cell begins."""
        where = np.unravel_index(cell, self.grid) if self.grid else ()
        return tuple(int(i) * size for i, size in zip(where, self.cell_shape, strict=True))

    def cell_at(self, index: Sequence[slice]) -> int:
        """Returns the cell that is there."""
        parts = zip(index, self.cell_shape, strict=True)
        where = tuple((part.start or 0) // max(1, size) for part, size in parts)
        return int(np.ravel_multi_index(where, self.grid)) if self.grid else 0


class Run(NamedTuple):
    """Rows of one cell, which are side by side in a stream."""

    path: str
    cell: int
    first: int
    rows: int
    offset: int  # In bytes, in the stream of its group.
    size: int


@dataclasses.dataclass(frozen=True)
class Stream:
    """The bytes of a group, of all arrays of its layout."""

    places: Mapping[str, Place]
    group: Group
    items: Sequence[tuple[str, int]]  # Path and cell.
    begins: Sequence[int]  # Where each item begins, and last the size of all.

    @property
    def size(self) -> int:
        """Returns the number of bytes."""
        return self.begins[-1]

    @property
    def parts(self) -> int:
        """Returns the number of processes that share the stream."""
        return max(1, min(len(self.group.processes), self.size // _LEAST))

    def begin_of(self, part: int) -> int:
        """Returns where a part begins: at the first row after as many even parts."""
        if part >= self.parts:
            return self.size
        even = -(-part * self.size // self.parts)
        item = bisect.bisect_right(self.begins, even) - 1
        row = self.places[self.items[item][0]].row_bytes
        return self.begins[item] - (self.begins[item] - even) // row * row

    def part_at(self, offset: int) -> int:
        """Returns the part in which a byte is that begins a row."""
        return offset * self.parts // self.size

    def runs(self, begin: int, end: int) -> Iterator[Run]:
        """Yields the rows between two offsets, which begin rows."""
        item = bisect.bisect_right(self.begins, begin) - 1
        while begin < end:
            path, cell = self.items[item]
            row, start = self.places[path].row_bytes, self.begins[item]
            size = min(end, self.begins[item + 1]) - begin
            yield Run(path, cell, (begin - start) // row, size // row, begin, size)
            begin, item = begin + size, item + 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """The streams of a step: by layout and group."""

    places: Mapping[str, Place]

    def __post_init__(self) -> None:
        layouts: dict[Layout, list[str]] = {}
        for path in sorted(self.places):
            if math.prod(self.places[path].shape):
                layouts.setdefault(self.places[path].layout, []).append(path)
        held: dict[int, list[tuple[Layout, Group]]] = {}
        for layout in layouts:
            for group in layout.groups:
                for process in group.processes:
                    held.setdefault(process, []).append((layout, group))
        object.__setattr__(self, "_layouts", layouts)
        object.__setattr__(self, "_held", held)
        object.__setattr__(self, "_streams", {})
        object.__setattr__(self, "_positions", {})

    _layouts: Mapping[Layout, Sequence[str]] = dataclasses.field(init=False, repr=False)
    _held: Mapping[int, Sequence[tuple[Layout, Group]]] = dataclasses.field(init=False, repr=False)
    _streams: dict[tuple[Layout, Group], Stream] = dataclasses.field(init=False, repr=False)
    _positions: dict[int, dict[int, int]] = dataclasses.field(init=False, repr=False)

    @property
    def layouts(self) -> Sequence[Layout]:
        """Returns the layouts, in the order of their first array."""
        return list(self._layouts)

    @property
    def writers(self) -> list[int]:
        """Returns the processes that write anything."""
        return sorted(process for process in self._held if self.size_of(process))

    def stream(self, layout: Layout, group: Group) -> Stream:
        """Returns the stream of a group."""
        if (layout, group) not in self._streams:
            items = [(path, cell) for path in self._layouts[layout] for cell in group.cells]
            sizes = [self.places[path].rows * self.places[path].row_bytes for path, _ in items]
            self._streams[layout, group] = Stream(self.places, group, items, [0, *itertools.accumulate(sizes)])
        return self._streams[layout, group]

    def held_by(self, process: int) -> Iterator[Stream]:
        """Yields the streams that a process holds, in the order in which its parts of them are in its file."""
        for layout, group in self._held.get(process, ()):
            yield self.stream(layout, group)

    def written_by(self, process: int) -> Iterator[tuple[Stream, int, int]]:
        """Yields what a process writes, in the order of its file: streams, and from where to where."""
        for stream in self.held_by(process):
            part = stream.group.processes.index(process)
            if (begin := stream.begin_of(part)) < (end := stream.begin_of(part + 1)):
                yield stream, begin, end

    def size_of(self, process: int) -> int:
        """Returns the bytes that a process writes."""
        return sum(end - begin for _, begin, end in self.written_by(process))

    def position(self, process: int, stream: Stream) -> int:
        """Returns where in the file of a process its part of a stream begins."""
        if process not in self._positions:
            found, position = {}, 0
            for each, begin, end in self.written_by(process):
                found[id(each)], position = position, position + end - begin
            self._positions[process] = found
        return self._positions[process][id(stream)]

    def stream_of(self, path: str, cell: int) -> tuple[Stream, int]:
        """Returns the stream in which a cell of an array is, and where in it."""
        layout = self.places[path].layout
        stream = self.stream(layout, layout.group_with(cell))
        item = bisect.bisect_left(stream.items, (path, cell))
        return stream, stream.begins[item]


def place_of(shape: Sequence[int], dtype: Any, sharding: Sharding) -> Place:
    """Returns how an array lies on processes."""
    cell = sharding.shard_shape(tuple(shape))
    grid = tuple(size // part if part else 1 for size, part in zip(shape, cell, strict=True))
    return Place(tuple(shape), str(jnp.dtype(dtype)), grid, _layout(sharding, tuple(shape), grid))


_known: dict[tuple[Sharding, tuple[int, ...]], Layout] = {}


def _layout(sharding: Sharding, shape: tuple[int, ...], grid: tuple[int, ...]) -> Layout:
    if (sharding, shape) not in _known:
        cell = sharding.shard_shape(shape)
        holders: dict[int, set[int]] = {}
        for device, index in sharding.devices_indices_map(shape).items():
            where = [(part.start or 0) // max(1, size) for part, size in zip(index, cell, strict=True)]
            number = int(np.ravel_multi_index(where, grid)) if grid else 0
            holders.setdefault(number, set()).add(device.process_index)
        by_holders: dict[tuple[int, ...], list[int]] = {}
        for number in sorted(holders):
            by_holders.setdefault(tuple(sorted(holders[number])), []).append(number)
        groups = (Group(tuple(cells), processes) for processes, cells in by_holders.items())
        _known[sharding, shape] = Layout.of(tuple(groups))
    return _known[sharding, shape]


def layout_to_text(layout: Layout) -> str:
    """Returns a layout in short: there may be thousands of processes.

    >>> layout_to_text(Layout.of((Group((0, 1, 2), (0,)), Group((3,), (1, 4)))))
    '0-2:0 3:1,4'
    """
    return " ".join(f"{_ranges(group.cells)}:{_ranges(group.processes)}" for group in layout.groups)


def layout_from_text(text: str) -> Layout:
    """Returns what `layout_to_text` was called on; a ValueError if it cannot have been."""
    parts = [part.partition(":") for part in text.split(" ")]
    groups = [Group(_numbers(cells), _numbers(processes)) for cells, _, processes in parts]
    cells = sorted(itertools.chain.from_iterable(group.cells for group in groups))
    if cells != list(range(len(cells))):
        raise ValueError(f"{text!r:.80} has not each cell once")
    if any(sorted(set(group.processes)) != list(group.processes) or not group.processes for group in groups):
        raise ValueError(f"{text!r:.80} has a cell that no process, or one twice, holds")
    return Layout.of(tuple(groups))


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


_MOST = 1 << 22  # Cells and processes that a layout may have: a range in a damaged file may be of any length.


def _numbers(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ValueError(f"{text!r:.80} is no list of numbers")
        a, b = int(first), int(last or first)
        if b - a + len(found) > _MOST:
            raise ValueError(f"{text!r:.80} is too long")
        found += range(a, b + 1)
    return tuple(found)
