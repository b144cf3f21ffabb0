# SPDX-License-Identifier: Apache-2.0
"""`Metrics`: what was read of the metrics of a run, which grows with its file; and how much of all is kept."""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._records import Catalog, Column, Heads, Sample, Taker, advance
from ._root import read
from ._series import Axis, Curve, curve, points, restarts, seconds, units

PACE = "loss"  # Each step that is logged has one.
RATE = "_per_second"
_SEEN = 256  # Bytes at the end of what was read, by which another file in its place is known.
_MOST_COLUMNS = 512  # Of a run.


class Seen(NamedTuple):
    """What there is in a file, at a moment."""

    metrics: list[str]
    samples: list[Sample]
    bad: int  # Lines that are no records.


class Metrics:
    """What was read of one file. A file that has shrunk, or that another one has replaced, is read anew."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._start()

    def _start(self) -> None:
        self.size = 0  # The bytes of memory that this takes, about.
        self._file: tuple[int, int] | None = None
        self._seen = b""
        self._heads, self._catalog = Heads(), Catalog()
        self._columns: OrderedDict[str, Column] = OrderedDict()

    def columns(self, file: int, names: Sequence[str]) -> tuple[Heads, list[Column]]:
        """Returns steps and times, and metrics by name, of an open file as it is now."""
        with self._lock:
            self._check(file)
            wanted: list[Taker] = [self._heads]
            for name in names:
                self._columns.setdefault(name, Column(name))
                self._columns.move_to_end(name)
                wanted.append(self._columns[name])
            found = [self._columns[name] for name in names]
            self._advance(file, list(dict.fromkeys(wanted)))
            while len(self._columns) > max(_MOST_COLUMNS, len(names)):
                self._columns.popitem(last=False)
            return self._heads, found

    def seen(self, file: int) -> Seen:
        """Returns what there is in an open file as it is now."""
        with self._lock:
            self._check(file)
            self._advance(file, [self._catalog])
            return Seen(list(self._catalog.metrics), list(self._catalog.samples), self._catalog.bad)

    def curve(
        self,
        file: int,
        name: str,
        axis: Axis,
        *,
        first: float | None = None,
        resumed: Sequence[float] = (),
        begin: float | None = None,
        end: float | None = None,
        most: int,
    ) -> Curve:
        """Returns a metric over steps, over units or over seconds since `first`, the first start where it is known."""
        with self._lock:
            unit = self.unit(file) if axis == "units" else None
            asked = [name, PACE, *([f"{unit}s"] if unit else [])]
            heads, (column, pace, *counts) = self.columns(file, asked)
            found, marks = points(heads, column, pace), restarts(heads, pace, resumed)
            x, at_marks = found.steps.astype(float), heads.steps[marks].astype(float)
            if axis == "time":
                passed = seconds(heads, first)
                x, at_marks = passed[found.rows], passed[marks]
            elif axis == "units":
                steps, sums = units(points(heads, counts[0], pace)) if counts else (np.zeros(1), np.zeros(1))
                x, at_marks = np.interp(x, steps, sums), np.interp(at_marks, steps, sums)
        return curve(x, found.values, at_marks, begin=begin, end=end, most=most)

    def unit(self, file: int) -> str | None:
        """Returns what the input of the run is counted in; None where it does not say."""
        return unit_in(self.seen(file).metrics)

    def _advance(self, file: int, takers: Sequence[Taker]) -> None:
        size = os.fstat(file).st_size
        if all(each.end >= size for each in takers):
            return
        advance(lambda offset, count: read(file, offset, count), size, takers)
        end = max(each.end for each in [self._heads, self._catalog, *self._columns.values()])
        self._seen = read(file, max(0, end - _SEEN), min(end, _SEEN))
        self._end = end
        self.size = self._heads.size + self._catalog.size + sum(each.size for each in self._columns.values())

    def _check(self, file: int) -> None:
        """Starts anew if this is not the file that was read before, with more at its end."""
        about = os.fstat(file)
        same = (about.st_dev, about.st_ino)
        if self._file is not None:
            kept = self._seen == b"" or read(file, self._end - len(self._seen), len(self._seen)) == self._seen
            if same != self._file or not kept:
                self._start()
        self._file = same


def unit_in(names: Sequence[str]) -> str | None:
    """Returns the unit, in the singular, of what is counted by the second.

    >>> unit_in(["loss", "tokens_per_second"])
    'token'
    """
    for name in names:
        if name.endswith(RATE) and "/" not in name:
            return name.removesuffix(RATE).removesuffix("s") or None
    return None


class Kept:
    """The metrics of runs by id, at most so many bytes of them: the run that was asked for least lately goes first."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._runs: OrderedDict[str, Metrics] = OrderedDict()

    def of(self, run: str) -> Metrics:
        """Returns those of a run."""
        with self._lock:
            found = self._runs.setdefault(run, Metrics())
            self._runs.move_to_end(run)
            return found

    def trim(self) -> None:
        """Forgets what is too much; called when something was read."""
        with self._lock:
            size = sum(each.size for each in self._runs.values())
            while size > self._most and self._runs:
                _, gone = self._runs.popitem(last=False)
                size -= gone.size

    @property
    def size(self) -> int:
        """The bytes that are kept, about."""
        with self._lock:
            return sum(each.size for each in self._runs.values())
