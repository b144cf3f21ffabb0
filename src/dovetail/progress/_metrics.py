# SPDX-License-Identifier: Apache-2.0
"""What a run has measured: `metrics.jsonl` in its directory as columns, without steps that were lost."""

import bisect
import math
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ._json_lines import json_lines
from ._ledger import LEDGER

METRICS = "metrics.jsonl"
Axis = Literal["step", "units", "time"]

_RATE = "_per_second"
_WORDS = ("nan", "inf", "-inf")  # For which JSON has no number.


class Column(NamedTuple):
    """A metric; steps only grow."""

    steps: list[int]
    times: list[float]  # Seconds since 1970.
    values: list[float]  # Some may not be finite.


class Text(NamedTuple):
    """Something to read that a run has written down: a sample, a message."""

    step: int
    time: float
    text: str


class Metrics:
    """What a run has measured so far."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.texts: dict[str, list[Text]] = {}
        self.restarts: list[int] = []  # Steps after which the run went on when it had stopped.
        self.unit = ""  # In which the input counts, in the plural: tokens.
        self.start: float | None = None  # Seconds since 1970.
        self._units: tuple[list[int], list[float]] = [], []  # Steps, and the units of all steps so far.

    def add(self, record: dict[str, Any]) -> None:
        """Adds a line. Where a step comes again, what was measured from it on is lost: the run has gone back."""
        step, time = record.get("step"), record.get("time")
        if not isinstance(step, int) or isinstance(step, bool):
            return
        at = float(time) if isinstance(time, int | float) else math.nan
        numbers = {name: _number(value) for name, value in record.items() if name not in ("step", "time")}
        if any(column.steps[-1] > step for column in self.columns.values() if column.steps):
            self._forget(step)
        for name, value in record.items():
            if (number := numbers.get(name)) is not None:
                column = self.columns.setdefault(name, Column([], [], []))
                if column.steps[-1:] == [step]:
                    self._cut(column, len(column.steps) - 1)
                column.steps.append(step)
                column.times.append(at)
                column.values.append(number)
            elif isinstance(value, str) and name not in ("step", "time"):
                self.texts.setdefault(name, []).append(Text(step, at, value))

    def x(self, name: str, axis: Axis) -> list[float]:
        """Returns where the values of a metric are: their steps, the units of all steps so far, or seconds."""
        column = self.columns[name]
        if axis == "time":
            start = self.start or 0.0
            return [time - start for time in column.times]
        return [self.at(step, axis) for step in column.steps]

    def at(self, step: int, axis: Axis) -> float:
        """Returns where the end of a step is on an axis; between two that are known, by its share."""
        if axis == "step":
            return float(step)
        steps, found = self._units if axis == "units" else self._clock()
        if not steps:
            return math.nan
        i = bisect.bisect_left(steps, step)
        if i == len(steps) or steps[i] == step:
            return found[min(i, len(steps) - 1)]
        before = (steps[i - 1], found[i - 1]) if i else (0, 0.0)
        return before[1] + (step - before[0]) / (steps[i] - before[0]) * (found[i] - before[1])

    def _clock(self) -> tuple[list[int], list[float]]:
        name = max(self.columns, key=lambda name: len(self.columns[name].steps), default=None)
        return ([], []) if name is None else (self.columns[name].steps, self.x(name, "time"))

    def _forget(self, step: int) -> None:
        """Leaves out what was measured from a step on."""
        for column in self.columns.values():
            self._cut(column, bisect.bisect_left(column.steps, step))
        for name, texts in self.texts.items():
            self.texts[name] = [each for each in texts if each.step < step]

    def _cut(self, column: Column, keep: int) -> None:
        for part in column:
            del part[keep:]

    def finish(self, restarts: list[int], start: float | None) -> None:
        """Says after which steps the run went on, and when it began, where a ledger knows; and sums up the units."""
        self.columns = {name: column for name, column in self.columns.items() if column.steps}
        last = max((column.steps[-1] for column in self.columns.values()), default=0)
        self.restarts = sorted({step for step in restarts if 0 < step <= last})
        times = [column.times[0] for column in self.columns.values()]
        self.start = min(times, default=None) if start is None else start
        rates = (name.removesuffix(_RATE) for name in self.columns if name.endswith(_RATE))
        self.unit = next((unit for unit in rates if unit in self.columns), "")
        if self.unit:
            before, total = 0, 0.0
            for step, _, units in zip(*self.columns[self.unit], strict=True):
                total += units * (step - before)
                before = step
                self._units[0].append(step)
                self._units[1].append(total)


def read_metrics(directory: Path) -> Metrics:
    """Returns what a run has measured, by its directory; nothing where it has not."""
    found, back, last = Metrics(), list[int](), 0
    for record in json_lines(directory / METRICS):
        step = record.get("step")
        if isinstance(step, int) and step < last:
            back.append(max(step - 1, 0))
        last = step if isinstance(step, int) else last
        found.add(record)
    lives = [each for each in json_lines(directory / LEDGER) if each.get("event") in ("open", "resume")]
    starts = [wall for each in lives if isinstance(wall := each.get("wall"), int | float)]
    resumed = [step for each in lives if each.get("event") == "resume" and isinstance(step := each.get("step"), int)]
    found.finish(resumed if lives else back, min(starts, default=None))
    return found


def _number(value: object) -> float | None:
    """Returns a number, also one for which JSON has no word; None for anything else."""
    if isinstance(value, str):
        return float(value) if value in _WORDS else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
