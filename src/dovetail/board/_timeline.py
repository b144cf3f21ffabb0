# SPDX-License-Identifier: Apache-2.0
"""What the time of a run went to, in its order: the ledger as spans, what was lost among them, failures and restarts.

Times are seconds of the run: since its first start, by the clocks that the ledger goes by, which no setting of a wall
clock changes.
"""

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.progress import KINDS, LOSABLE, Account, Kind

from ._records import number_in
from ._root import read

_MOST = 20_000  # Spans in memory; older ones are joined.
_SHOWN = 2_000  # That are answered.
_MOST_EVENTS = 500
_LONGEST = 1 << 16
_PIECE = 1 << 20
_DULL, _GOING = ("process", "host"), ("host lost", "leaving")
_WORDS = {
    "launched": "a launch began",
    "start": "processes were started",
    "end": "the processes ended",
    "over": "the launch was over",
    "quarantine": "a host is not used any more",
    "host lost": "a host was lost",
    "leaving": "a host leaves",
    "moving": "steps are made",
    "slow": "processes are slow",
}


class Span(NamedTuple):
    """Time of one kind."""

    kind: Kind
    start: float
    end: float
    life: int  # Which start of the run, from 1.
    first: float  # The step that was made last before it, and at its end.
    last: float


class _Life(NamedTuple):
    number: int
    name: str
    wall: float
    start: float  # In seconds of the run.
    before: float  # Where it is in the run: seconds before its own.


class Timeline:
    """Adds up the records of a ledger, in their order, as `Account` does, and keeps when what was."""

    def __init__(self) -> None:
        self.account = Account()
        self.spans: list[Span] = []
        self.events: list[dict[str, Any]] = []
        self.resumed: list[tuple[float, int]] = []  # After the first start: when, and after which step.
        self.first: float | None = None  # By a wall clock.
        self._lives: list[_Life] = []
        self._spent: dict[str, float] = {}
        self._at = 0.0
        self._step = 0
        self._has_step = False

    @property
    def size(self) -> int:
        """The bytes of memory that this takes, about."""
        return 200 * (len(self.spans) + len(self.events) + len(self._lives))

    def line(self, text: str) -> None:
        """Adds a line of the file; what is not a record is passed over."""
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError, AttributeError, OverflowError):
            record = json.loads(text[:_LONGEST])
            starts, lost = self.account.starts, self.account.lost_steps
            self.account.add(record)
            if record.get("event") == "open":
                if self.account.starts > starts:
                    self._open(record)
            elif self._lives and str(record["life"]) == self._lives[-1].name:
                self._add(record, self.account.lost_steps - lost)

    def _open(self, record: Mapping[str, Any]) -> None:
        for kind in KINDS:
            self._pass(kind, float(record["gap"].get(kind, 0.0)), self._step)
        if self.first is None:
            self.first = float(record["wall"]) - self._at
        self._lives.append(_Life(len(self._lives) + 1, str(record["life"]), float(record["wall"]), self._at, self._at))
        self._spent, self._has_step = {}, False

    def _add(self, record: Mapping[str, Any], lost: int) -> None:
        spent = {kind: float(record["seconds"].get(kind, 0.0)) for kind in KINDS}
        step, now = int(record["step"]), record.get("kind")
        resumes = record.get("event") == "resume"
        passed = {kind: spent[kind] - self._spent.get(kind, 0.0) for kind in KINDS}
        # In which order it was is not known but for the last.
        for kind in sorted(KINDS, key=lambda kind: kind == now):
            if passed[kind] > 0:
                self._pass(kind, passed[kind], self._step if resumes or not self._has_step else step)
        self._spent = spent
        if resumes:
            self._resume(step, lost)
        self._step = step
        if ended := str(record.get("ended", "")):
            self.events.append(
                {"time": self._at, "kind": ended, "text": f"{_ENDED.get(ended, ended)} after step {step}"}
            )
        del self.events[:-_MOST_EVENTS]

    def _resume(self, step: int, lost: int) -> None:
        again, self._has_step = self._has_step, True
        number = self._lives[-1].number
        self._lose(step)
        if again or number > 1:
            self.resumed.append((self._at, step))
            del self.resumed[:-_MOST_EVENTS]
            text = f"went back to step {step}" if again else f"start {number}, goes on after step {step}"
            text += f"; {lost:,} steps were lost" if lost else ""
            self.events.append({"time": self._at, "kind": "rollback" if again else "resumed", "text": text})

    def _pass(self, kind: Kind, seconds: float, step: float) -> None:
        if seconds <= 0:
            return
        end, life = self._at + seconds, max(1, len(self._lives))
        self.spans.append(Span(kind, self._at, end, life, self._step, max(step, self._step)))
        self._at = end
        if len(self.spans) > _MOST:
            half = len(self.spans) // 2
            self.spans = [*joined(self.spans[:half], _MOST // 4), *self.spans[half:]]

    def _lose(self, step: int) -> None:
        """What was made after a step is lost: what is of it in spans becomes lost work."""
        changed: list[Span] = []
        while self.spans and self.spans[-1].last > step:
            span = self.spans.pop()
            if span.kind not in LOSABLE:
                changed.append(span)
            elif span.first >= step:
                changed.append(span._replace(kind="lost_work"))
            else:
                cut = span.start + (span.end - span.start) * (step - span.first) / (span.last - span.first)
                changed += [
                    span._replace(kind="lost_work", start=cut, first=step),
                    span._replace(end=cut, last=step),
                ]
        # What is lost is lost once: it has no steps any more.
        self.spans += [each._replace(first=step, last=step) if each.last > step else each for each in reversed(changed)]

    def named(self, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns what is answered; `events` are what `told` returns."""
        kinds = {kind: round(seconds, 3) for kind, seconds in self.account.seconds.items()}
        spans = [
            {"kind": s.kind, "start": round(s.start, 3), "end": round(s.end, 3), "life": s.life}
            for s in joined(self.spans, _SHOWN)
            if s.end - s.start >= 0.001
        ]
        told = [{"time": self.at(e["wall"]), "kind": e["kind"], "text": e["text"]} for e in events[-_MOST_EVENTS:]]
        found = sorted([*self.events, *told], key=lambda each: each["time"])
        return {"kinds": kinds, "spans": spans, "events": [{**e, "time": round(e["time"], 3)} for e in found]}

    def at(self, wall: float) -> float:
        """Returns which second of the run it was at a time of a wall clock, as far as that can be told."""
        life = next((each for each in reversed(self._lives) if each.wall <= wall), None)
        if life is None:
            return max(0.0, min(self._at, wall - (self.first or wall)))
        return min(self._at, life.start + wall - life.wall)


class Ledgers:
    """The ledger of a run as it grows: whole, where its timeline is asked for, and when it was begun and resumed."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._file: tuple[int, int] | None = None
        self.timeline, self._read = Timeline(), 0
        self.first: float | None = None  # By a wall clock.
        self.resumed: list[float] = []
        self._scanned = 0

    @property
    def size(self) -> int:
        """The bytes of memory that this takes, about."""
        return self.timeline.size + 40 * len(self.resumed)

    def update(self, file: int) -> Timeline:
        """Returns the timeline of what is written so far."""
        size = self._check(file)
        while self._read < size:
            data = read(file, self._read, _PIECE)
            cut = data.rfind(b"\n") + 1
            if not cut:  # Torn, or longer than any record.
                self._read += len(data) if len(data) == _PIECE else 0
                break
            for line in data[:cut].split(b"\n"):
                self.timeline.line(line[:_LONGEST].decode(errors="replace"))
            self._read += cut
        return self.timeline

    def restarts(self, file: int) -> Sequence[float]:
        """Returns the times at which the run went on, but for the first start, by a wall clock; nothing is parsed."""
        size = self._check(file)
        while self._scanned < size:
            data = read(file, self._scanned, _PIECE)
            cut = data.rfind(b"\n") + 1
            if not cut:
                self._scanned += len(data) if len(data) == _PIECE else 0
                break
            # Few lines are of these kinds: only they are parsed.
            for line in data[:cut].split(b"\n") if b'"event"' in data else ():
                if b'"event"' in line:
                    self._scan(line[:_LONGEST])
            self._scanned += cut
        return self.resumed[1:][-_MOST_EVENTS:]

    def _scan(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError, AttributeError):
            record = json.loads(line.decode(errors="replace"))
            wall, event = float(record["wall"]), record["event"]
            if event == "resume" and math.isfinite(wall):
                self.resumed.append(wall)
            elif event == "open" and self.first is None and math.isfinite(wall):
                self.first = wall

    def _check(self, file: int) -> int:
        about = os.fstat(file)
        same = (about.st_dev, about.st_ino)
        if self._file is not None and (self._file != same or about.st_size < max(self._read, self._scanned)):
            self._start()
        self._file = same
        return about.st_size


def told(data: bytes) -> list[dict[str, Any]]:
    """Returns what a supervisor has said, in words: `wall`, a time by its clock, `kind` and `text`."""
    found: list[dict[str, Any]] = []
    is_over = False
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, RecursionError, OverflowError):
            event = json.loads(line[:_LONGEST].decode(errors="replace"))
            if not isinstance(event, dict) or not isinstance(name := event.get("event"), str):
                continue
            is_over = name == "over" or (is_over and name in _GOING)  # Hosts are let go then.
            if name not in _DULL and not (is_over and name in _GOING) and math.isfinite(wall := float(event["time"])):
                found.append(_in_words(name, wall, event))
    return found


def _in_words(name: str, wall: float, event: Mapping[str, Any]) -> dict[str, Any]:
    if name == "failed":  # It is written down when all processes have ended.
        clock, detected = number_in(event.get("clock")), number_in(event.get("detected"))
        late = max(0.0, clock - detected) if clock and detected and math.isfinite(clock - detected) else 0.0
        why = str(event.get("text", "")).strip().rpartition("\n")[2][:300]
        text = f"process {event.get('rank', '?')} failed ({event.get('what', '?')}) after step {event.get('step', 0)}"
        return {"wall": wall - late, "kind": name, "text": f"{text}: {why}" if why else text}
    text, about, code = _WORDS.get(name, name[:100]), event.get("why") or event.get("slot"), event.get("code")
    text += f": {about[:300]}" if isinstance(about, str) and about else ""
    text += f" (exit code {code})" if isinstance(code, int) else ""
    return {"wall": wall, "kind": name[:100], "text": text}


_ENDED = {"done": "it is done", "stopped": "it was stopped", "failed": "it failed"}


def joined(spans: Sequence[Span], most: int) -> list[Span]:
    """Returns spans with neighbours of one kind as one; where there are too many, those of a while by kind."""
    found: list[Span] = []
    for span in spans:
        if found and (found[-1].kind, found[-1].life) == (span.kind, span.life):
            found[-1] = found[-1]._replace(end=span.end, last=max(found[-1].last, span.last))
        else:
            found.append(span)
    if len(found) <= most:
        return found
    shares: list[Span] = []
    width = max((found[-1].end - found[0].start) * 4 / most, 1e-9)
    place = 0
    while place < len(found):  # Within a width, time is together by kind.
        stop = place
        while (
            stop < len(found)
            and found[stop].start < found[place].start + width
            and found[stop].life == found[place].life
        ):
            stop += 1
        here, at = found[place:stop], found[place].start
        kinds: list[Kind] = [each.kind for each in here]
        for kind in dict.fromkeys(kinds):
            some = [each for each in here if each.kind == kind]
            end = at + sum(each.end - each.start for each in some)
            last = max(each.last for each in here)
            shares.append(Span(kind, at, end, some[0].life, min(each.first for each in here), last))
            at = end
        place = stop
    return joined(shares, len(shares))
