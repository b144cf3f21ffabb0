# SPDX-License-Identifier: Apache-2.0
"""What a scheduler has done with a job, in a file of its own, a line of JSON for each event.

arrived   it was seen for the first time
start     it is about to be handed to its engine, for chips of a pool; with the length of its metrics by then
started   its engine has it
stop      it is about to be taken away from there; with the steps a second that were measured meanwhile

A line is written before what it says is done, so that nothing is done that is not written down. Whether it was done,
the engine knows. A line that is torn counts not: it was not done yet.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dovetail.progress import json_lines

Place = tuple[str, int]  # A pool, and chips of it.


class Past(NamedTuple):
    """What was done with a job so far."""

    arrived: float | None = None  # Wall-clock time.
    at: Place | None = None  # Where it was started last, if it was not stopped since.
    since: float = 0.0  # When.
    is_sure: bool = False  # Whether its engine took it then.
    offset: int = 0  # In the metrics of its run: what comes behind was written since then.
    starts: int = 0
    ran: float = 0.0  # Seconds, without those since the last start.
    rates: Mapping[Place, float] = {}  # Steps a second that were measured, the last ones.

    def ran_until(self, now: float) -> float:
        """Returns for how many seconds it had chips."""
        return self.ran + (max(0.0, now - self.since) if self.at is not None else 0.0)


def note_event(
    file: Path,
    event: Literal["arrived", "start", "started", "stop"],
    clock: float,
    place: Place | None = None,
    **more: float | None,
) -> None:
    """Writes down what is about to be done."""
    record: dict[str, Any] = {"event": event, "clock": clock}
    if place is not None:
        record |= {"pool": place[0], "chips": place[1]}
    record |= {name: value for name, value in more.items() if value is not None}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as opened:
        opened.write(f"\n{json.dumps(record)}\n".encode())  # The first line ends one that is torn.


def past_of(file: Path) -> Past:
    """Returns what was done with a job."""
    past = Past()
    for each in _events(file):
        clock = float(each["clock"])
        place = (str(each["pool"]), int(each["chips"])) if "pool" in each else None
        match each["event"]:
            case "arrived" if past.arrived is None:
                past = past._replace(arrived=clock)
            case "start":
                more = {"starts": past.starts + 1, "offset": int(each.get("offset", 0))}
                past = past._replace(at=place, since=clock, is_sure=False, **more)
            case "started":
                past = past._replace(is_sure=True)
            case "stop":
                rates = {**past.rates, **({place: float(each["rate"])} if place is not None and "rate" in each else {})}
                past = past._replace(at=None, ran=past.ran_until(clock), rates=rates)
            case _:
                pass
    return past


def _events(file: Path) -> Iterator[Mapping[str, Any]]:
    return (found for found in json_lines(file) if {"event", "clock"} <= found.keys())
