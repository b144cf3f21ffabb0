# SPDX-License-Identifier: Apache-2.0
"""What the time between two lives of a run went to: nobody writes a ledger then, but a supervisor writes its events."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ._json_lines import json_object
from ._ledger import Kind, Last
from ._moment import Moment

EVENTS = "launch/events.jsonl"  # In the directory of a run.
_MOST = 8 << 20  # Bytes that are read of it, from its end.
_NEXT: dict[str, Kind] = {"launched": "start", "failed": "restart", "end": "restart", "over": "idle"}


def gap(last: Last | None, start: Moment, events: Sequence[Mapping[str, Any]]) -> dict[Kind, float]:
    """Returns the seconds from the end of a life (None: there was none) to the start of the next, by kind.

    `events` are those since that life began.

    While a launch supervises, the time after a failure is `restart`, and what is before its first process is `start`.
    A life that ended without a word went on with what it did until the supervisor says that it failed. What nobody
    knows anything about is `idle`.
    """
    times = [(start.since(_moment(event)), str(event["event"])) for event in _failures_first(events)]
    if last is None:
        found = next((i for i, (_, name) in enumerate(times) if name == "launched"), None)
        if found is None:
            return {}
        times, whole, kind = times[found:], times[found][0], "start"
    else:
        whole = start.since(last.at)
        kind = _after(last, [name for _, name in times])
    gone: dict[Kind, float] = {}
    left = whole
    for ago, name in times:
        if name in _NEXT:
            ago = min(ago, left)
            gone[kind] = gone.get(kind, 0.0) + left - ago
            left, kind = ago, _NEXT[name]
    gone[kind] = gone.get(kind, 0.0) + left
    return {kind: seconds for kind, seconds in gone.items() if seconds > 0}


def _after(last: Last, names: Sequence[str]) -> Kind:
    """Returns what the time right after a life is."""
    known = [name for name in names if name in _NEXT]
    if not last.supervised or not known or known[0] == "launched":
        return "idle"
    return "restart" if last.ended else last.kind


def _failures_first(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns events with failures where they were noticed: a supervisor writes them down when the gang has ended."""
    found: list[Mapping[str, Any]] = []
    for event in events:
        late = event["event"] == "failed" and float(event["clock"]) - float(event.get("detected") or event["clock"])
        if late and late > 0:
            if found and found[-1]["event"] == "end":
                found.pop()
            event = {**event, "time": event["time"] - late, "clock": event["clock"] - late}
        found.append(event)
    return found


def _moment(event: Mapping[str, Any]) -> Moment:
    return Moment(float(event["time"]), float(event["clock"]), str(event.get("boot", "")))


def read_events(directory: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Returns the events of the launches of a run from a place in their file on, and where they end."""
    found: list[dict[str, Any]] = []
    try:
        with (directory / EVENTS).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(offset, size - _MOST))
            data = file.read(_MOST)
    except OSError:
        return [], offset
    for line in data.decode(errors="replace").splitlines():
        event = json_object(line)
        with contextlib.suppress(ValueError, TypeError, KeyError):
            if event is not None and _moment(event) and event["event"]:
                found.append(event)
    return found, size
