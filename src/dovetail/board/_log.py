# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run have printed, as far as its directory has it, with what went wrong."""

import contextlib
import os
import re
from collections.abc import Sequence
from typing import Any

from ._root import Root, parts_of, read_at

_TAIL = 2 << 20  # Bytes of a log.
_LONG = 4_000  # Letters of a line.
_MOST = 5_000  # Lines.
_MOST_FILES = 1_000
_LOG = re.compile(r"(\d+|job-[\w.-]+)\.log")
_ERROR = re.compile(
    r"Traceback \(most recent call last\)|\b(?:[A-Z]\w*)?(?:Error|Exception)\b(?::|$)|\b(?:ERROR|FATAL|CRITICAL)\b"
    r"|^(?:\[\d+\] )?(?:fatal|error)\b|^E\d{4} |Segmentation fault|^launch: .*\bfailed\b"
)
_WARNING = re.compile(r"\bWARN(?:ING)?\b|\bWarning\b|^(?:\[\d+\] )?warning\b|^W\d{4} ")
_CONTROLS = re.compile("\x1b\\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def log_of(root: Root, run: str, events: Sequence[dict[str, Any]], lines: int, file: str | None) -> dict[str, Any]:
    """Returns the last lines of a log: of `file`, or of the first process, with what a supervisor has told.

    `events` are that, with times; they come first, as lines have none.
    """
    most = max(1, min(lines, _MOST))
    with root.directory(parts_of(run)) as here:
        files = _files(here)
        report = read_at(here, ["launch", "report.txt"], _TAIL) if file is None else None
        chosen = file if file is not None else next(iter(files), None)
        if chosen is not None and chosen not in files:
            raise ValueError(f"The run has no log {chosen!r:.100}.")
        data = read_at(here, chosen.split("/"), _TAIL, last=True) if chosen is not None else None
    found = [] if file is not None else [_event(each) for each in events]
    found += [_line(line, "error") for line in _split(report)]
    text = _split(data)
    printed = text[-most:]
    if len(text) > most or (data is not None and len(data) == _TAIL):
        printed = [f"... the last lines of {chosen} ...", *printed]
    return {"lines": [*found[-most:], *_levels(printed)], "files": files}


def _files(here: int) -> list[str]:
    """Returns the names of logs, that of the first process first."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        below = os.open("launch", os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=here)
        try:
            found = [f"launch/{name}" for name in os.listdir(below) if _LOG.fullmatch(name)]
        finally:
            os.close(below)
    with contextlib.suppress(OSError):
        found += [name for name in os.listdir(here) if name.endswith(".log") and re.fullmatch(r"[\w.-]{1,100}", name)]
    return sorted(found, key=_order)[:_MOST_FILES]


def _order(name: str) -> tuple[bool, bool, list[int], str]:
    """Returns by what logs are sorted: those of processes, by number, then other ones of a launch, then the rest."""
    below = name.removeprefix("launch/")
    return below == name, not below[0].isdecimal(), [int(each) for each in re.findall(r"\d+", below)], name


def _split(data: bytes | None) -> list[str]:
    """Returns lines without what would move a cursor; of a bar of progress, what it has shown last."""
    lines = (data or b"").decode(errors="replace").split("\n")
    shown = [_CONTROLS.sub("", line.rstrip("\r").rpartition("\r")[2])[:_LONG] for line in lines]
    return [line.rstrip() for line in shown[: len(shown) - (not shown[-1])]]


def _levels(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Returns lines with their levels. What is indented below an error is part of it."""
    found: list[dict[str, Any]] = []
    in_trace = False
    for line in lines:
        level = "error" if _ERROR.search(line) else "warning" if _WARNING.search(line) else "info"
        if in_trace and (line.startswith((" ", "\t")) or not line):
            level = "error" if line else "info"
        else:
            in_trace = line.endswith("Traceback (most recent call last):")
        found.append(_line(line, level))
    return found


def _line(text: str, level: str) -> dict[str, Any]:
    return {"time": None, "level": level, "text": text}


def _event(event: dict[str, Any]) -> dict[str, Any]:
    bad = event["kind"] in ("failed", "quarantine", "host lost")
    return {"time": event["wall"], "level": "error" if bad else "info", "text": event["text"]}
