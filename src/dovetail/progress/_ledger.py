# SPDX-License-Identifier: Apache-2.0
"""The ledger of a run: what each second of it went to, from its first start to now.

It is a file of JSON lines that is only appended to. A process that trains opens a *life* in it, and writes every few
seconds, and when a step is saved, how many seconds of this life went to what. `Account` adds the records up. Steps made
after the one that the next life goes on from are lost, and so is all time spent on them: with their data, evaluations
and checkpoints. Starting and compiling are what they are.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ._json_lines import json_object
from ._moment import Moment

Kind = Literal["start", "compile", "data_wait", "step", "evaluation", "checkpoint", "lost_work", "restart", "idle"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LOSABLE: tuple[Kind, ...] = ("data_wait", "step", "evaluation", "checkpoint")
LEDGER = "goodput.jsonl"

_POINTS = 20_000  # Kept in memory; of older ones, every other one is dropped.
_LONGEST = 1 << 16  # Characters of a line.


class Last(NamedTuple):
    """The last thing that is known of a life."""

    at: Moment
    kind: Kind  # What it was doing.
    ended: str  # How, if it said so: "done", "stopped" or "failed".
    supervised: bool
    events: int  # Where those of a supervisor ended when it began.


class _Point(NamedTuple):
    step: int  # The last one that was made.
    spent: tuple[float, ...]  # So far, on each of what can be lost.


class Account:
    """Adds up the records of a ledger, in their order. What is not a record, as a torn line, is passed over."""

    def __init__(self) -> None:
        self.starts = 0  # Lives.
        self.lost_steps = 0
        self.step = 0  # The last one that was made and not lost.
        self.last: Last | None = None
        self._life, self._boot, self._supervised, self._events = "", "", False, 0
        self._base: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)  # Before this life, and what was lost within it.
        self.seconds: dict[Kind, float] = dict(self._base)
        self._points: list[_Point] = []  # Of steps that are not lost: these never decrease.
        self._goes_on = False  # Whether this life has said after which step it goes on: until then, it has none.

    @property
    def total(self) -> float:
        """The seconds of the run so far."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """The share of steps that count."""
        return self.seconds["step"] / self.total if self.total else 0.0

    def named(self) -> dict[str, Any]:
        """Returns all of it by name."""
        rounded = {kind: round(seconds, 3) for kind, seconds in self.seconds.items()}
        counts = {"starts": self.starts, "step": self.step, "lost_steps": self.lost_steps}
        return {"goodput": round(self.goodput, 6), "wall_seconds": round(self.total, 3), "seconds": rounded, **counts}

    def text(self) -> str:
        """Returns a few lines for people: the share of each, the largest first."""
        total = self.total or 1.0
        parts = sorted(((s, kind) for kind, s in self.seconds.items() if s >= 0.0005 * total), reverse=True)
        lines = [f"  {kind.replace('_', ' '):<11}{100 * s / total:>6.1f} %{_hours(s):>12}" for s, kind in parts]
        starts = "in one start" if self.starts == 1 else f"in {self.starts} starts"
        lost = f"; {self.lost_steps:,} steps were lost" if self.lost_steps else ""
        head = f"goodput {100 * self.goodput:.1f} % of {_hours(self.total)}, {starts}{lost}"
        return "\n".join([head, *lines])

    def line(self, text: str) -> None:
        """Adds a line of the file."""
        record = json_object(text)
        with contextlib.suppress(ValueError, TypeError, KeyError):
            if record is not None:
                self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds a record."""
        event, life = record.get("event", "at"), str(record["life"])
        wall, clock = float(record["wall"]), float(record["clock"])
        if event == "open":
            gap = {kind: float(record["gap"].get(kind, 0.0)) for kind in KINDS}
            self._life, self._boot, self._supervised = life, str(record["boot"]), bool(record["supervised"])
            self._events, self._goes_on = int(record["events"]), False
            self._base = {kind: self.seconds[kind] + gap[kind] for kind in KINDS}
            self.seconds = dict(self._base)
            self.starts += 1
            self.last = self._lasts(wall, clock, "start", "")
            return
        if life != self._life:
            return  # Of a process that should have been gone: another one goes on with the run.
        spent = {kind: float(record["seconds"].get(kind, 0.0)) for kind in KINDS}
        step, doing, ended = int(record["step"]), record["kind"], str(record.get("ended", ""))
        self.seconds = {kind: self._base[kind] + spent[kind] for kind in KINDS}
        self.last = self._lasts(wall, clock, doing if doing in KINDS else "step", ended)
        if event == "resume":
            self._goes_on = True
            self._lose(step)
            self.step = step
        elif self._goes_on:
            after = record.get("after", {})  # What was spent on the next step already.
            spent_on = zip(LOSABLE, self._losable(), strict=True)
            step = max(step, self._points[-1].step)
            self._points.append(_Point(step, tuple(s - float(after.get(kind, 0.0)) for kind, s in spent_on)))
            self.step = step
        if len(self._points) > _POINTS:
            self._points = self._points[: _POINTS // 2 : 2] + self._points[_POINTS // 2 :]

    def _lasts(self, wall: float, clock: float, kind: Kind, ended: str) -> Last:
        return Last(Moment(wall, clock, self._boot), kind, ended, self._supervised, self._events)

    def _losable(self) -> tuple[float, ...]:
        return tuple(self.seconds[kind] for kind in LOSABLE)

    def _lose(self, step: int) -> None:
        """All that was done after a step is lost."""
        kept, reached = [point for point in self._points if point.step <= step], self.step
        later = self._points[len(kept)] if len(kept) < len(self._points) else None
        spent = kept[-1].spent if kept else (0.0,) * len(LOSABLE)
        if later is not None:  # Between two records: by its share of their steps.
            first = kept[-1].step if kept else 0
            share = (step - first) / (later.step - first)
            spent = tuple(a + share * (b - a) for a, b in zip(spent, later.spent, strict=True))
        elif kept and kept[-1].step < step:
            spent = self._losable()  # It was made after the last record: so nothing is known to be lost.
        for kind, good in zip(LOSABLE, spent, strict=True):
            lost = max(0.0, self.seconds[kind] - good)
            for seconds in (self.seconds, self._base):
                seconds[kind] -= lost
                seconds["lost_work"] += lost
        self.lost_steps += max(0, reached - step)
        self._points = [*kept, _Point(step, self._losable())]


class Ledger:
    """Reads a ledger as it grows."""

    def __init__(self, file: Path) -> None:
        self._file, self._read, self._rest = file, 0, b""
        self.account = Account()

    def update(self) -> Account:
        """Returns the account of what is written so far."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._read)
                while data := file.read(1 << 20):
                    self._read += len(data)
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    for line in lines:
                        self.account.line(line[:_LONGEST].decode(errors="replace"))
                    self._rest = self._rest[:_LONGEST]
        except FileNotFoundError:
            pass
        return self.account


def _hours(seconds: float) -> str:
    """Returns a length of time in the unit that suits it.

    >>> _hours(12.34), _hours(754.0), _hours(93_600.0)
    ('12.3 s', '12.6 min', '26.0 h')
    """
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
