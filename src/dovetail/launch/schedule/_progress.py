# SPDX-License-Identifier: Apache-2.0
"""How far a run is and how fast, from the metrics in its directory."""

import json
from pathlib import Path
from typing import NamedTuple

_TAIL = 1 << 20  # Bytes of the file that are looked at.
_LEAST = 5  # Steps between two lines that a rate is measured by.


class Progress(NamedTuple):
    """How far a run is."""

    step: int = 0  # The last one that was reported.
    rate: float | None = None  # Steps a second that were kept, of late; None if that is not known yet.
    size: int = 0  # Of the metrics, in bytes.


def progress_of(directory: Path, offset: int) -> Progress:
    """Returns how far a run is, and how fast by its metrics from an offset on.

    What was lost and done again counts as time. Times are compared with each other only: clocks of hosts may differ.
    """
    try:
        with (directory / "metrics.jsonl").open("rb") as opened:
            size = opened.seek(0, 2)
            at = opened.seek(max(0, size - _TAIL))
            lines = opened.read(_TAIL).splitlines(keepends=True)
    except OSError:
        return Progress()
    step, late = 0, list[tuple[float, int]]()
    for line in lines:
        if (found := _read(line)) is not None:
            step = found[1]
            late += [found] if at >= offset else []
        at += len(line)
    if len(late) < 2 or late[-1][1] - late[0][1] < _LEAST or late[-1][0] <= late[0][0]:
        return Progress(step, size=size)
    return Progress(step, (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0]), size)


def _read(line: bytes) -> tuple[float, int] | None:
    """Returns time and step of a line; None if it is torn, or has none."""
    try:
        found = json.loads(line)
        return float(found["time"]), int(found["step"])
    except (ValueError, TypeError, KeyError):
        return None
