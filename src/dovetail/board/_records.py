# SPDX-License-Identifier: Apache-2.0
"""What is taken from the lines of `metrics.jsonl`: steps and times, the values of one metric, what else there is.

A line is mostly `{"step": 7, "time": 1.5, "loss": 2.5, ...}`, numbers alone, as `JsonLines` writes it. From such a line
a value is cut out without reading the rest: parsing 100,000 of them as JSON takes a second, this a twentieth of it. Any
other line is *odd*, and parsed. Rows are lines, counted from 0.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

_START, _END = b'{"step": ', ord("}")
_HEAD = 96  # Bytes of a line that have its step and time.
_HEADS = re.compile(rb'\{"step": (\d{1,15}), "time": (\d{1,12}(?:\.\d{1,12})?), "[^\n]*\n')
_PLAIN = re.compile(r"[ !#-\[\]-~]{1,200}")  # Names of metrics that are written as they are.
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_VARYING = b"0123456789.-+"
_DIGITS = frozenset(_VARYING.decode())
_LARGEST = 1 << 53  # A step that a float can hold.
_MOST_NAMES = 4096  # Of metrics, texts and so on, of a run.
_LONGEST = 1 << 26  # Bytes of a line that is read.
_MOST_KINDS = 4096  # Of lines, by their names.
_MOST_ALIKE = 64  # Of one kind, whose names differ in digits.


class Lines(NamedTuple):
    """Whole lines of a file, without their ends."""

    first: int  # The row of the first one.
    offset: int  # In the file.
    data: bytes
    lines: Sequence[bytes]
    odd: Sequence[int]  # Which of them are parsed; places in `lines`.


class Taker(Protocol):
    """Takes something from lines, which come in order, each once."""

    end: int  # Bytes of the file that were taken so far.
    rows: int

    def take(self, lines: Lines) -> None:
        """Takes the lines after those so far."""

    @property
    def size(self) -> int:
        """The bytes of memory that this takes, about."""
        ...


def lines_of(data: bytes, *, first: int, offset: int) -> Lines:
    """Returns the lines of bytes that end with one."""
    lines = data.split(b"\n")
    lines.pop()
    odd = [
        i
        for i, line in enumerate(lines)
        if line.rfind(b"{") or not line.startswith(_START) or line[-1] != _END  # Or torn.
    ]
    return Lines(first, offset, data, lines, odd)


def record_of(line: bytes) -> dict[str, Any] | None:
    """Returns the record in a line: the last one, if what is before it was torn; None if there is none."""
    for text in dict.fromkeys((line, line[max(0, line.rfind(_START)) :])):
        try:
            found = json.loads(text.decode(errors="replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and _step_in(found) is not None:
            time = number_in(found.get("time"))
            if time is not None and math.isfinite(time):
                return found
    return None


def _step_in(record: Mapping[str, Any]) -> int | None:
    step = record.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < _LARGEST else None


def number_in(value: object) -> float | None:
    """Returns a number, also one for which JSON has no word; None for anything else."""
    if isinstance(value, str):
        return _WORDS.get(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return None
    return None


class Heads:
    """Step and time of each row; the step is -1 where there is no record."""

    def __init__(self) -> None:
        self.end = self.rows = 0
        self.steps: Any = np.empty(0, np.int64)
        self.times: Any = np.empty(0)

    @property
    def size(self) -> int:
        return self.steps.nbytes + self.times.nbytes

    def take(self, lines: Lines) -> None:
        count, odd = len(lines.lines), set(lines.odd)
        steps, times = np.full(count, -1, np.int64), np.zeros(count)
        plain = [i for i in range(count) if i not in odd] if odd else range(count)
        heads = [lines.lines[i][:_HEAD] for i in plain]
        found = _HEADS.findall(b"\n".join([*heads, b""]))
        if len(found) == len(heads):
            if found:
                where: Any = plain if odd else slice(None)
                steps[where], times[where] = [int(step) for step, _ in found], [float(time) for _, time in found]
        else:  # Some of them say it in another way.
            odd |= set(plain)
        for i in sorted(odd):
            record = record_of(lines.lines[i])
            if record is not None:
                steps[i], times[i] = record["step"], number_in(record["time"])
        self.steps, self.times = np.append(self.steps, steps), np.append(self.times, times)
        self.end, self.rows = self.end + len(lines.data), self.rows + count


class Column:
    """The values of one metric, and in which rows they are."""

    def __init__(self, name: str) -> None:
        self.end = self.rows = 0
        self.at: Any = np.empty(0, np.int64)
        self.values: Any = np.empty(0)
        self._name = name
        self._key = json.dumps(name).encode() + b": " if _PLAIN.fullmatch(name) else None

    @property
    def size(self) -> int:
        return self.at.nbytes + self.values.nbytes

    def take(self, lines: Lines) -> None:
        odd = set(lines.odd) if self._key else set(range(len(lines.lines)))
        at, values, strange = _cut(lines.lines, self._key, odd) if self._key else ([], [], [])
        for i in sorted([*odd, *strange]):
            record = record_of(lines.lines[i])
            value = None if record is None else number_in(record.get(self._name))
            if value is not None:
                at.append(i)
                values.append(value)
        rows, found = np.array(at, np.int64), np.array(values, np.float64)
        if odd or strange:
            order = np.argsort(rows, kind="stable")
            rows, found = rows[order], found[order]
        self.at, self.values = np.append(self.at, rows + lines.first), np.append(self.values, found)
        self.end, self.rows = self.end + len(lines.data), self.rows + len(lines.lines)


def _cut(lines: Sequence[bytes], key: bytes, odd: set[int]) -> tuple[list[int], list[float], list[int]]:
    """Returns places and values of lines that are not odd, and the places of those whose value is no plain number."""
    at, values, strange, long = list[int](), list[float](), list[int](), len(key)
    for i, line in enumerate(lines):
        begin = line.find(key)
        if begin < 0 or i in odd:
            continue
        begin += long
        end = line.find(b",", begin)
        try:
            values.append(float(line[begin:end]))  # Without a comma it is the last one, before a brace.
            at.append(i)
        except ValueError:
            strange.append(i)
    return at, values, strange


class Sample(NamedTuple):
    """A row with something besides numbers."""

    row: int
    offset: int
    length: int
    step: int
    time: float
    names: tuple[tuple[str, str], ...]  # What it has: "text", "picture", "table" or "histogram", and its name.


class Catalog:
    """Which metrics there are, which rows have something else, and which no record."""

    def __init__(self) -> None:
        self.end = self.rows = self.bad = 0
        self.metrics: dict[str, None] = {}
        self.samples: list[Sample] = []
        # Lines of numbers alone, by the same names, are alike when their digits are taken away; one of each kind is
        # looked at. Of names with digits, these are kept, as they are written: a line without them has others.
        self._known: dict[bytes, list[list[bytes]]] = {}
        self._have_digits = False

    @property
    def size(self) -> int:
        return 300 * len(self.samples) + sum(map(len, self._known)) + 100 * len(self.metrics)

    def take(self, lines: Lines) -> None:
        odd, kinds = set(lines.odd), lines.data.translate(None, _VARYING).split(b"\n")
        offset = lines.offset
        if odd or self._have_digits or not self._known.keys() >= set(kinds[:-1]):
            for i, line in enumerate(lines.lines):
                if i in odd:
                    self._look(line, lines.first + i, offset)
                elif (kept := self._known.get(kinds[i])) is None or (kept and not _are_in(kept, line)):
                    self._keep(kinds[i], self._look(line, lines.first + i, offset))
                offset += len(line) + 1
        self.end, self.rows = self.end + len(lines.data), self.rows + len(lines.lines)

    def _keep(self, kind: bytes, record: Mapping[str, Any] | None) -> None:
        if record is None:
            return
        with_digits = [json.dumps(name).encode() for name in record if any(c in _DIGITS for c in name)]
        if (
            len(self._known) < _MOST_KINDS
            and len(kept := self._known.setdefault(kind, [])) < _MOST_ALIKE
            and with_digits
        ):
            kept.append(with_digits)
            self._have_digits = True

    def _look(self, line: bytes, row: int, offset: int) -> Mapping[str, Any] | None:
        """Returns the record of a line, if it is of numbers alone."""
        record = record_of(line)
        if record is None:
            self.bad += bool(line.strip())
            return None
        names = tuple(_named(record))
        if names:
            self.samples.append(Sample(row, offset, len(line), record["step"], float(record["time"]), names))
        for name, value in record.items():
            if name not in ("step", "time") and number_in(value) is not None and len(self.metrics) < _MOST_NAMES:
                self.metrics.setdefault(name)
        return None if names else record


def _are_in(kept: Sequence[Sequence[bytes]], line: bytes) -> bool:
    """Whether a line has all of one of several lists of names."""
    return any(all(name in line for name in names) for names in kept)


def _named(record: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields what a record has besides numbers."""
    for name, value in record.items():
        if isinstance(value, str) and value not in _WORDS:
            yield "text", name
        elif name in ("pictures", "tables", "histograms") and isinstance(value, dict):
            for each in value:
                yield name[:-1], each


def advance(read: Callable[[int, int], bytes], size: int, takers: Sequence[Taker], *, piece: int = 4 << 20) -> None:
    """Has all takers take the whole lines that a file of some size has; those that are as far share the reading.

    `read` returns bytes from an offset on. A line that has no end yet waits.
    """
    while behind := [each for each in takers if each.end < size]:
        begin = min(each.end for each in behind)
        group = [each for each in behind if each.end == begin]
        stop = min([size, begin + piece, *(each.end for each in takers if each.end > begin)])
        data = read(begin, stop - begin)
        cut = data.rfind(b"\n") + 1
        end, is_long = begin + cut, False
        while not cut and stop < size:  # A line that is longer than a piece; one that is far longer is passed over.
            more = read(stop, piece)
            if not more:
                return
            is_long = is_long or len(data) >= _LONGEST
            data = more if is_long else data + more
            cut = (data.find(b"\n") if is_long else data.rfind(b"\n")) + 1
            stop += len(more)
            end = stop - len(data) + cut
        if not cut:
            return
        whole = b"\n" if is_long else data[:cut]
        found = lines_of(whole, first=group[0].rows, offset=begin)
        for each in group:
            each.take(found)
            each.end = end
