# SPDX-License-Identifier: Apache-2.0
"""What a compiled step keeps in memory when it needs the most, read from the compiler's own assignment of buffers.

XLA writes the assignment on request (`xla_dump_to`), also for a program that it then refuses as too large. Values with
overlapping lifetimes have places of their own; the space between them is lost.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ._hlo import Hlo

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*):$")
_VALUE = re.compile(r"^ value: <\d+ ([\w.\-]+?)(\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\)")
_RANGE = re.compile(r"^    ([\w.\-]+)(\{[\d,]*\}):(\d+)-(\d+)$")
_HOST = "color 5"  # Of XLA's memory spaces: the host's.


class Buffer(NamedTuple):
    """A piece of memory at the moment of the highest use."""

    op_names: tuple[str, ...]  # What made its value, as JAX names it: some names may say more than others.
    bytes: int


class Memory(NamedTuple):
    """The memory of a program on one device, in bytes."""

    arguments: int
    outputs: int  # Those that do not take the place of an argument.
    temporaries: int  # The largest part is that of `live`; the rest is lost between buffers, and constants.
    host: int
    live: list[Buffer]  # Temporaries at the moment of the highest use, the largest first.

    @property
    def total(self) -> int:
        """All that is needed on the device, but for the code."""
        return self.arguments + self.outputs + self.temporaries


class _Value(NamedTuple):
    name: str
    place: int | None  # Where its instruction has several results.
    start: int
    stop: int
    first: int  # When it comes to life, in the order of the schedule.
    last: int


def read_memory(directory: Path) -> Memory:
    """Returns the memory of the one program whose dump is in a directory."""
    text = _only(directory, "*after_optimizations-buffer-assignment.txt")
    ranges = _ranges(_only(directory, "*after_optimizations-live-range.txt"))
    program = Hlo(_only(directory, "*after_optimizations.txt"))
    arguments = outputs = temporaries = host = 0
    live: list[Buffer] = []
    for size, about, values in _allocations(text, ranges):
        if _HOST in about:
            host += size
        elif "color" in about or "thread-local" in about:  # Fast memory on the chip, and registers.
            continue
        elif "parameter" in about:
            arguments += size
        elif "preallocated-temp" in about:
            temporaries += size
            live += _at_peak(values, program)
        elif "maybe-live-out" in about:
            outputs += size
        else:
            temporaries += size
    return Memory(arguments, outputs, temporaries, host, sorted(live, key=lambda each: -each.bytes))


def compiled_text(directory: Path) -> str:
    """Returns the compiled program whose dump is in a directory: all that there is of one that was refused."""
    return _only(directory, "*after_optimizations.txt")


def _only(directory: Path, pattern: str) -> str:
    (path,) = directory.glob(pattern)
    return path.read_text("utf-8")


def _ranges(text: str) -> dict[str, tuple[int, int]]:
    matches = (_RANGE.match(line) for line in text.splitlines())
    return {m[1] + m[2]: (int(m[3]), int(m[4])) for m in matches if m}


def _allocations(text: str, ranges: dict[str, tuple[int, int]]) -> Iterable[tuple[int, str, list[_Value]]]:
    """Yields size, description and values of each allocation."""
    current: tuple[int, str, list[_Value]] | None = None
    for line in text.splitlines():
        start, value = _ALLOCATION.match(line), _VALUE.match(line)
        if start:
            if current:
                yield current
            current = int(start[1]), start[2], []
        elif value and current:
            name, size, offset = value[1] + (value[2] or "{}"), int(value[3]), int(value[4])
            if name in ranges:
                index = value[2].strip("{}").partition(",")[0] if value[2] else ""
                span = (offset, offset + size, *ranges[name])
                current[2].append(_Value(value[1], int(index) if index else None, *span))
        elif not line.startswith(" ") and current:
            yield current
            current = None
    if current:
        yield current


def _at_peak(values: list[_Value], program: Hlo) -> list[Buffer]:
    """Returns what is live when the most bytes are; one place counts once, for the value that was there first."""
    moments = sorted({value.first for value in values})
    alive: list[list[_Value]] = [[] for _ in moments]
    for value in values:
        for i in range(bisect_right(moments, value.first) - 1, bisect_right(moments, value.last)):
            alive[i].append(value)
    best = max((_places(each) for each in alive), key=lambda pieces: sum(size for _, size in pieces), default=[])
    return [Buffer(tuple(_origins(program, value.name, value.place)), size) for value, size in best]


def _places(values: list[_Value]) -> list[tuple[_Value, int]]:
    """Returns each value with the bytes that no value before it covers."""
    found: list[tuple[_Value, int]] = []
    end = 0
    for value in sorted(values, key=lambda value: (value.start, -value.stop)):
        if value.stop > end:
            found.append((value, value.stop - max(value.start, end)))
            end = value.stop
    return found


_MOVES = {"copy", "copy-start", "copy-done", "bitcast", "get-tuple-element", "convert", "dynamic-update-slice"}


def _origins(program: Hlo, name: str, index: int | None, depth: int = 6) -> Iterator[str]:
    """Yields the JAX names of an instruction, and of what it moves, or carries from one run of a loop to the next."""
    each = program.instructions.get(name)
    if each is None or depth == 0:
        return
    if each.op_name:
        yield each.op_name
    if each.name in program.results and index is not None:
        result = program.results[each.name].operands
        if index < len(result):
            yield from _origins(program, result[index], None, depth - 1)
    elif each.opcode in _MOVES or each.op_name.endswith("dynamic_update_slice"):
        place = int(each.attribute(r"index=(\d+)") or -1) if each.opcode == "get-tuple-element" else -1
        for operand in each.operands:
            yield from _origins(program, operand, place if place >= 0 else None, depth - 1)
        for called in each.called:  # What was fused with the move.
            yield from (inner.op_name for inner in program.computations.get(called, ()) if inner.op_name)
