# SPDX-License-Identifier: Apache-2.0
"""Carries decisions out: looks how jobs are, and has engines stop, move and start them.

What is known is what engines say, what the runs' directories say, and the events of `_past`. So a scheduler may die at
any moment, and the next one goes on. A job is handed over only when no engine has it: nothing runs twice.
"""

import abc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from dovetail.config import ConfigError

from .._records import JobInfo, exit_code_in, record_in
from ._decide import Decision
from ._forecast import corrected
from ._jobs import JobSpec
from ._past import Past, Place, note_event, past_of
from ._progress import progress_of

_ENDED = ("done", "failed", "cancelled")
_LOOK = 0.5  # Seconds between two looks whether a job is gone.
_REFUSED = 10  # Rounds in which an engine is not asked again for what it has refused.

State = Literal["waits", "runs", "leaves", "done", "failed", "cancelled", "foreign"]


class Fleet(abc.ABC):
    """The engines of all pools."""

    @abc.abstractmethod
    def jobs(self) -> Sequence[JobInfo]:
        """Returns all jobs that the engines know, those that have ended lately among them."""

    @abc.abstractmethod
    def submit(self, spec: JobSpec, place: Place) -> JobInfo:
        """Hands a job to the engine of a pool; a ConfigError if that refuses it."""

    @abc.abstractmethod
    def cancel(self, info: JobInfo) -> None:
        """Asks a job to save and end."""


class Seen(NamedTuple):
    """How a job is."""

    spec: JobSpec
    state: State
    past: Past
    info: JobInfo | None = None  # What its engine says.
    step: int = 0
    rate: float | None = None  # Steps a second where it runs, as measured.

    @property
    def place(self) -> Place | None:
        """Where it runs."""
        return self.past.at if self.state == "runs" else None

    @property
    def detail(self) -> str:
        """What a person should know of a job that is not placed."""
        match self.state:
            case "foreign":
                return "it runs, and was not started from here: it is left alone"
            case "failed" | "cancelled":
                told = self.info.detail if self.info is not None else ""
                return f"{told + '; ' if told else ''}`dovetail jobs resume {self.spec.directory}` lets it go on"
            case _:
                return ""


class Did(NamedTuple):
    """What was done for a job."""

    job: str
    what: Literal["stopped", "started", "refused", "still saves"]
    place: Place
    id: str = ""  # As its engine names it.
    why: str = ""


class Executor:
    """Looks, and carries out.

    Args:
        fleet: the engines.
        directory: for what was done with each job.
        clock: wall-clock time.
        patience: seconds that a job may take to save and end before others start.
    """

    def __init__(
        self, fleet: Fleet, directory: Path, *, clock: Callable[[], float] = time.time, patience: float = 120.0
    ) -> None:
        self.fleet, self._directory, self._clock, self._patience = fleet, directory, clock, patience
        self._refused: dict[tuple[str, Place], int] = {}  # Rounds that are left.

    def look(self, specs: Sequence[JobSpec]) -> list[Seen]:
        """Returns how jobs are; those that are seen for the first time arrive."""
        infos = self.fleet.jobs()
        self._refused = {key: left - 1 for key, left in self._refused.items() if left > 1}
        return [self._seen(spec, [each for each in infos if each.directory == spec.directory]) for spec in specs]

    def _seen(self, spec: JobSpec, infos: Sequence[JobInfo]) -> Seen:
        file = self._file(spec)
        past = past_of(file)
        if past.arrived is None:
            note_event(file, "arrived", self._clock())
            past = past_of(file)
        progress = progress_of(Path(spec.directory), past.offset)
        state, info = _state(spec, infos, past)
        if state == "runs" and not past.is_sure:
            note_event(file, "started", self._clock())
        rate = progress.rate if past.at is not None else None
        return Seen(spec, state, past, info, progress.step, rate)

    def asked(self, seen: Seen, steps: float) -> JobSpec:
        """Returns a job as a decision needs it: where it runs, what it has done, how fast it was."""
        spec, now, past = seen.spec, self._clock(), seen.past
        arrived = now if past.arrived is None else past.arrived
        ran = past.ran_until(now)
        measured = {**past.rates, **({seen.place: seen.rate} if seen.place is not None and seen.rate else {})}
        believed = {(pool, int(n)): rate for pool, by_chips in spec.rates.items() for n, rate in by_chips.items()}
        rates: dict[str, dict[str, float]] = {}
        for (pool, chips), rate in {**corrected(believed, measured), **measured}.items():
            rates.setdefault(pool, {})[str(chips)] = rate
        deadline = spec.deadline_seconds
        return spec.set(
            steps=max(steps - seen.step, 1.0),
            running={} if seen.place is None else {"pool": seen.place[0], "chips": seen.place[1]},
            rates=rates,
            ran_seconds=ran,
            waited_seconds=max(0.0, now - arrived - ran),
            deadline_seconds=None if deadline is None else max(0.0, deadline - (now - arrived)),
        )

    def may_have(self, job: str, place: Place) -> bool:
        """Whether the engine of a pool did not refuse a job there of late."""
        return (job, place) not in self._refused

    def carry_out(self, decision: Decision, seen: Sequence[Seen]) -> list[Did]:
        """Stops, moves and starts; returns what was done."""
        mine, did = {each.spec.name: each for each in seen}, list[Did]()
        for each in seen:
            if each.state == "leaves" and each.info is not None:
                self.fleet.cancel(each.info)  # Again: whoever asked it first may have died before it did.
        leaving = [each for each in seen if each.state == "leaves"]
        for action in decision.actions:
            each = mine[action.job]
            if action.action in ("stop", "move") and each.info is not None and each.place is not None:
                note_event(self._file(each.spec), "stop", self._clock(), each.place, rate=each.rate)
                self.fleet.cancel(each.info)
                leaving.append(each)
                did.append(Did(action.job, "stopped", each.place, each.info.id, action.why))
        here = self._still_there(leaving)
        for action in decision.actions:
            if action.action not in ("move", "start"):
                continue
            place, spec = (action.pool, action.chips), mine[action.job].spec
            if action.job in here:
                did.append(Did(action.job, "still saves", place, why="it is started when it has ended"))
            else:
                did.append(self._start(spec, place, action.why))
        return did + self._without_their_gang(did, mine)

    def _start(self, spec: JobSpec, place: Place, why: str) -> Did:
        file = self._file(spec)
        note_event(file, "start", self._clock(), place, offset=progress_of(Path(spec.directory), 0).size)
        try:
            info = self.fleet.submit(spec, place)
        except ConfigError as e:
            note_event(file, "stop", self._clock(), place)
            self._refused[spec.name, place] = _REFUSED
            return Did(spec.name, "refused", place, why=str(e))
        note_event(file, "started", self._clock())
        return Did(spec.name, "started", place, info.id, why)

    def _without_their_gang(self, did: Sequence[Did], mine: Mapping[str, Seen]) -> list[Did]:
        """Takes back those whose gang is not whole."""
        broken = {mine[each.job].spec.gang for each in did if each.what in ("refused", "still saves")} - {""}
        found: list[Did] = []
        infos = self.fleet.jobs() if broken else ()
        for each in did:
            spec = mine[each.job].spec
            if each.what == "started" and spec.gang in broken:
                note_event(self._file(spec), "stop", self._clock(), each.place)
                for info in infos:
                    if info.directory == spec.directory and info.state not in _ENDED:
                        self.fleet.cancel(info)
                found.append(Did(each.job, "stopped", each.place, each.id, f"not all of gang {spec.gang} could start"))
        return found

    def _still_there(self, leaving: Sequence[Seen]) -> set[str]:
        """Waits until jobs have ended, a while; returns those that have not."""
        until = time.monotonic() + self._patience
        left = {each.spec.directory: each.spec.name for each in leaving}
        while left:
            there = {info.directory for info in self.fleet.jobs() if info.state not in _ENDED}
            left = {directory: name for directory, name in left.items() if directory in there}
            if not left or time.monotonic() > until:
                break
            time.sleep(_LOOK)
        return set(left.values())

    def _file(self, spec: JobSpec) -> Path:
        return self._directory / f"{spec.name}.jsonl"


def _state(spec: JobSpec, infos: Sequence[JobInfo], past: Past) -> tuple[State, JobInfo | None]:
    """Returns how a job is, from what engines say of its directory, and else from the directory itself."""
    alive = [each for each in infos if each.state not in _ENDED]
    if alive:
        if past.at is not None:
            return "runs", alive[-1]
        return ("leaves" if past.starts else "foreign"), alive[-1]
    if exit_code_in(Path(spec.directory)) == 0:
        return "done", None
    record = record_in(Path(spec.directory))
    told = [record.info()] if record is not None and record.id and not infos else []
    newest = max([*infos, *told], key=_age, default=None)
    if newest is not None and newest.state not in _ENDED:  # A launch without an engine, which may still run.
        return "foreign", newest
    if newest is not None and newest.state == "done":
        return "done", newest
    if newest is None or past.at is None or not past.is_sure:  # What has ended is one from before.
        return "waits", newest
    return ("cancelled" if newest.state == "cancelled" else "failed"), newest


def _age(info: JobInfo) -> int:
    """Returns a number that is larger for jobs that were submitted later, where engines number them."""
    number = info.id.partition("_")[0]
    return int(number) if number.isdecimal() else 0
