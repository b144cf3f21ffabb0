# SPDX-License-Identifier: Apache-2.0
"""How a run is, in a line of the list: from the heads and the tails of its files, whatever their size."""

import contextlib
import itertools
import json
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.launch import DONE, RESUMABLE
from dovetail.progress import KINDS, LEDGER

from ._records import number_in, record_of
from ._root import Root, open_at, parts_of, read_at

METRICS, CONFIG = "metrics.jsonl", "config.txt"
_EVENTS, _REPORT, _JOB = ("launch", "events.jsonl"), ("launch", "report.txt"), ("launch", "job.json")
_WATCHED = (
    (METRICS,),
    (LEDGER,),
    (CONFIG,),
    _EVENTS,
    _REPORT,
    _JOB,
    ("checkpoints",),
    ("configs",),
    ("launch", "0.log"),
)
_HEAD, _TAIL = 4 << 10, 64 << 10
_MOST = 1 << 20  # Bytes of a config, or of a record of a job.
_LINES = 10  # Of the tail of the metrics, that are read whole: by these steps the rest is paced.
_DEEP = 4 << 20  # Bytes in which evaluations are looked for.
_EVALUATED, _EVALUATIONS = b'"eval', 4  # What is in lines of evaluations, and how many of them are read.
_ALIVE = 60.0  # Seconds: a ledger is written every three of them while its process lives ...
_NOTICED = 10.0  # ... and a supervisor notices an end within seconds ...
_STARTING = 900.0  # ... but nobody does while a supervisor waits for hosts, or starts processes.
_TELLING = ("launched", "start", "failed", "end", "over")  # Events that say how a launch is; hosts go after its end.
_RATE = "_per_second"
_STEPS = re.compile(rb"\nsteps = (\d{1,15})(?:\n|$)")
_RECIPE = re.compile(r"\bdovetail train ([\w.:/@+-]{1,200})(?:[^\n]{0,2000}? --on[ =]([\w.-]{1,100}))?")
_COLUMNS = ("loss", "goodput", "data_wait", "mfu")  # And all of evaluations.
_MOST_COLUMNS = 64


class Facts(NamedTuple):
    """What the files of a run say; what follows from it depends on the time."""

    stamp: tuple[Any, ...]  # Of the files: while it is the same, so are the facts.
    steps: int | None
    recipe: str | None
    hardware: str | None  # That it was launched on, if that is known.
    step: int
    last: Mapping[str, float]
    unit: str | None
    rate: float | None
    pace: float | None  # Seconds of a step.
    started: float | None
    updated: float | None
    touched: float  # When a file was written last, by the clock of the file system.
    kind: str  # What the last process did.
    ended: str
    is_supervised: bool
    is_alone: bool  # Whether the last process said goodbye, and its supervisor nothing after that.
    over: int | None  # The exit code, if a supervisor has written one.
    error: str | None
    problems: Sequence[str]
    has_metrics: bool
    has_ledger: bool
    is_deep: bool  # Whether evaluations were looked for far from the end of the metrics.


def stamp_of(root: Root, run: str) -> tuple[Any, ...]:
    """Returns what changes when a file of a run does; empty if the run is gone."""
    try:
        with root.directory(parts_of(run)) as here:
            return tuple(_stamp(here, "/".join(parts)) for parts in _WATCHED)
    except OSError:
        return ()


def _stamp(here: int, name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def facts_of(root: Root, run: str) -> Facts:
    """Returns what the files of a run say; an OSError if the run is gone."""
    with root.directory(parts_of(run)) as here:
        stamp = tuple(_stamp(here, "/".join(parts)) for parts in _WATCHED)
        there = {parts for parts, found in zip(_WATCHED, stamp, strict=True) if found}

        def part(*parts: str, most: int = _HEAD, last: bool = False) -> bytes | None:
            return read_at(here, parts, most, last=last) if parts in there else None

        tail = part(METRICS, most=_TAIL, last=True)
        metrics = _logged(part(METRICS), tail)
        ledger = _ledger(part(LEDGER), part(LEDGER, last=True))
        events = _events(part(*_EVENTS, most=_TAIL, last=True))
        config = b"\n" + (part(CONFIG, most=_MOST) or b"")
        report = part(*_REPORT)
        recipe, on = _recipe(part(*_JOB, most=_MOST))
        checkpoint = None if stamp[0] else _newest(here)
        problems = [_problem(here, name) for name in (METRICS, LEDGER, CONFIG) if (name,) in there]
    steps = _STEPS.match(config, max(0, config.find(b"\nsteps = ")))
    times = [t for t in (metrics.last_time, ledger.get("last"), events.get("last")) if t is not None]
    starts = [t for t in (ledger.get("first"), metrics.first_time) if t is not None]
    said_by_ledger = ledger.get("step")  # Each step that is made, where metrics have those that are logged.
    return Facts(
        stamp=stamp,
        steps=int(steps[1]) if steps else None,
        recipe=recipe,
        hardware=on,
        step=max(metrics.step, checkpoint or 0) if said_by_ledger is None else int(said_by_ledger),
        last=metrics.last,
        unit=metrics.unit,
        rate=metrics.rate,
        pace=metrics.pace,
        started=min(starts, default=None),
        updated=max(times, default=None),
        touched=max((each[2] / 1e9 for each in stamp[:2] + stamp[3:4] if each), default=0.0),
        kind=str(ledger.get("kind", "")),
        ended=str(ledger.get("ended", "")),
        is_supervised=bool(events) and events.get("event") != "over",
        is_alone=bool(ledger.get("ended")) and (ledger["last"] or 0.0) > events.get("last", 0.0),
        over=events["code"] if events.get("event") == "over" and _is_newest(events, ledger) else None,
        error=_first_line(report.decode(errors="replace")) if report else events.get("error"),
        problems=[each for each in problems if each],
        has_metrics=bool(stamp[0] and stamp[0][1]),
        has_ledger=bool(ledger),
        is_deep=not stamp[0] or stamp[0][1] <= _TAIL or any(map(_is_evaluation, metrics.last)),
    )


def _problem(here: int, name: str) -> str | None:
    """Returns what keeps a file that is there from being read."""
    try:
        os.close(open_at(here, name))
    except PermissionError:
        return f"{name} cannot be read: no permission."
    except OSError:
        return f"{name} is not a regular file, and is not read. Links are not followed."
    return None


class _Logged(NamedTuple):
    step: int = 0
    last: Mapping[str, float] = {}
    unit: str | None = None
    rate: float | None = None
    pace: float | None = None
    first_time: float | None = None
    last_time: float | None = None


def _logged(head: bytes | None, tail: bytes | None) -> _Logged:
    """Returns what the first and the last lines of the metrics say."""
    if not tail:
        return _Logged()
    lines = tail.split(b"\n")
    records = [each for each in map(record_of, lines[-_LINES:]) if each is not None]
    first = next((each for line in (head or b"").split(b"\n") if (each := record_of(line))), None)
    last, unit, rate = _evaluated(lines[:-_LINES]), None, None
    logged: list[tuple[int, float]] = []
    for record in records:
        for name, value in record.items():
            if name in _COLUMNS or _is_evaluation(name):
                _note(last, name, value)
            elif name.endswith(_RATE) and "/" not in name and (number := number_in(value)) is not None:
                unit, rate = name.removesuffix(_RATE).removesuffix("s"), number
        if "loss" in record:
            logged.append((record["step"], float(record["time"])))
    paces = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(logged) if b[0] > a[0] and b[1] > a[1]]
    step = logged[-1][0] if logged else records[-1]["step"] if records else 0
    return _Logged(
        step,
        last,
        unit,
        rate,
        statistics.median(paces) if paces else None,
        float(first["time"]) if first else None,
        max((float(each["time"]) for each in records), default=None),
    )


def _is_evaluation(name: str) -> bool:
    return "eval" in name.partition("/")[0] and "/" in name


def _note(last: dict[str, float], name: str, value: object) -> None:
    number = number_in(value)
    if number is not None and (name in last or len(last) < _MOST_COLUMNS):
        last[name] = number


def _evaluated(lines: Sequence[bytes]) -> dict[str, float]:
    """Returns what the last evaluations among lines have found."""
    last: dict[str, float] = {}
    for line in [line for line in lines if _EVALUATED in line][-_EVALUATIONS:]:
        for name, value in (record_of(line) or {}).items():
            if _is_evaluation(name):
                _note(last, name, value)
    return last


def deepened(root: Root, run: str, facts: Facts) -> Facts:
    """Returns the facts with evaluations that are farther from the end of the metrics than what a list looks at."""
    try:
        with root.directory(parts_of(run)) as here:
            tail = read_at(here, [METRICS], _DEEP, last=True) or b""
    except OSError:
        tail = b""
    lines: list[bytes] = []
    end = len(tail)
    while len(lines) < _EVALUATIONS and (at := tail.rfind(_EVALUATED, 0, end)) >= 0:
        end = tail.rfind(b"\n", 0, at) + 1
        lines.insert(0, tail[end : tail.find(b"\n", at)])
    found = _evaluated(lines)
    return facts._replace(last={**found, **facts.last}, is_deep=True)


def carried(before: Facts, now: Facts) -> Facts:
    """Returns the facts of a run with the evaluations that were known of the same file when it was shorter."""
    then, there = before.stamp[0] if before.stamp else None, now.stamp[0] if now.stamp else None
    if then is None or there is None or then[0] != there[0] or there[1] < then[1]:
        return now
    kept = {name: value for name, value in before.last.items() if _is_evaluation(name)}
    return now._replace(last={**kept, **now.last}, is_deep=before.is_deep)


def _lines(data: bytes | None) -> list[dict[str, Any]]:
    """Returns the JSON objects in lines; what is torn counts not."""
    found: list[dict[str, Any]] = []
    for line in (data or b"").split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            each = json.loads(line.decode(errors="replace"))
            if isinstance(each, dict):
                found.append(each)
    return found


def _ledger(head: bytes | None, tail: bytes | None) -> dict[str, Any]:
    """Returns when the ledger begins and ends, and what it says last."""
    records, firsts = _lines(tail), _lines(head)
    records = [each for each in records if number_in(each.get("wall")) is not None]
    if not records:
        return {}
    last, first = records[-1], next((each for each in firsts if number_in(each.get("wall")) is not None), records[0])
    steps = [each["step"] for each in records if isinstance(each.get("step"), int)]
    kind = last.get("kind", "start")
    return {
        "first": number_in(first["wall"]),
        "last": number_in(last["wall"]),
        "step": max(0, steps[-1]) if steps else None,
        "kind": kind if kind in KINDS else "",
        "ended": last.get("ended", ""),
    }


def _events(tail: bytes | None) -> dict[str, Any]:
    """Returns what a supervisor has said last."""
    found = [each for each in _lines(tail) if each.get("event") in _TELLING and number_in(each.get("time"))]
    if not found:
        return {}
    last, failed = found[-1], [each for each in found if each["event"] == "failed"]
    code = last.get("code")
    error = None
    if failed and not (last["event"] == "over" and code == DONE):
        error = _last_line(str(failed[-1].get("text", ""))) or str(failed[-1].get("what", "it failed"))
    code = code if isinstance(code, int) else 1
    return {"event": last["event"], "last": number_in(last["time"]), "code": code, "error": error}


def _is_newest(events: Mapping[str, Any], ledger: Mapping[str, Any]) -> bool:
    """Whether no process went on with the run after the supervisor said its last word."""
    return not ledger or ledger.get("ended") != "" or (ledger["last"] or 0.0) <= events["last"] + _ALIVE


def _recipe(job: bytes | None) -> tuple[str | None, str | None]:
    """Returns what was launched, and on which hardware, if the record of the job has the command."""
    for found in _lines((job or b"").replace(b"\n", b" ")):
        files = found.get("files")
        for text in files.values() if isinstance(files, dict) else ():
            if isinstance(text, str) and (match := _RECIPE.search(text)):
                return match[1], match[2]
    return None, None


def _newest(here: int) -> int | None:
    """Returns the newest checkpoint of a run that has no metrics."""
    try:
        names = os.listdir(below := os.open("checkpoints", os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=here))
        os.close(below)
    except OSError:
        return None
    return max((int(match[1]) for name in names if (match := re.fullmatch(r"step_(\d{1,15})", name))), default=None)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:500]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:500]


def state_of(facts: Facts, now: float) -> str:
    """Returns how a run is.

    A ledger is written every few seconds by the process that trains, so one that is old, of a run that has not said
    goodbye, is that of a process that is gone. Clocks of other machines may be a little off.
    """
    quiet = now - facts.touched
    if facts.over is not None:
        return {DONE: "done", RESUMABLE: "stopped"}.get(facts.over, "failed")
    if facts.is_supervised and (not facts.is_alone or quiet < _NOTICED):
        return "running" if quiet < (_ALIVE if facts.has_ledger and not facts.ended else _STARTING) else "lost"
    if facts.ended:
        return facts.ended if facts.ended in ("done", "stopped", "failed") else "failed"
    if not facts.has_metrics and not facts.has_ledger and not facts.step:
        return "empty"
    if quiet < _ALIVE:
        return "running"
    return "done" if facts.steps and facts.step >= facts.steps else "lost"


def run_of(run: str, name: str, facts: Facts, now: float) -> dict[str, Any]:
    """Returns what the list says of a run."""
    state = state_of(facts, now)
    left = None
    if state == "running" and facts.pace is not None and facts.steps is not None:
        left = max(0.0, facts.pace * (facts.steps - facts.step))
    span = None if facts.started is None or facts.updated is None else max(0.0, facts.updated - facts.started)
    return {
        "id": run,
        "name": name,
        "recipe": facts.recipe,
        "state": state,
        "step": facts.step,
        "steps": facts.steps,
        "loss": said(facts.last.get("loss")),
        "rate": said(facts.rate),
        "unit": facts.unit,
        "mfu": said(facts.last.get("mfu")),
        "goodput": said(facts.last.get("goodput")),
        "seconds_left": None if left is None else round(left, 1),
        "started": facts.started,
        "updated": facts.updated,
        "seconds": None if span is None else round(span, 3),
        "phase": facts.kind if state == "running" else None,
        "error": facts.error if state in ("failed", "lost") else None,  # One that was overcome is an event.
        "problems": list(facts.problems),
        "last": {name: said(value) for name, value in facts.last.items()},
    }


def said(value: float | None) -> float | str | None:
    """Returns a number as JSON can say it.

    >>> said(1.5), said(float("-inf")), said(None)
    (1.5, '-inf', None)
    """
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
