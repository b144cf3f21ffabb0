# SPDX-License-Identifier: Apache-2.0
"""The config of a run as its directory has it: a line for each path; those of earlier steps; and what differs."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ._root import Root, parts_of, read_at

_MOST = 1 << 20  # Bytes.
_MOST_PATHS = 20_000
_SPAN = re.compile(r"steps_(\d{1,15})-(\d{1,15})\.txt")
_MOST_SPANS = 100

Paths = list[tuple[str, str]]


def paths_in(text: str) -> Paths:
    """Returns path and value of each line.

    >>> paths_in("model.dim = 8\\nsteps = 3\\n")
    [('model.dim', '8'), ('steps', '3')]
    """
    found: Paths = []
    for line in text.split("\n")[:_MOST_PATHS]:
        path, equals, value = line.partition(" = ")
        if equals:
            found.append((path, value))
        elif line.strip() and found:  # A value of several lines.
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line}")
    return found


def config_of(root: Root, run: str) -> tuple[Paths, list[dict[str, Any]]]:
    """Returns the config of a run as it is now, and, if there were several, which made which steps."""
    with root.directory(parts_of(run)) as here:
        now = paths_in((read_at(here, ["config.txt"], _MOST) or b"").decode(errors="replace"))
        spans: list[tuple[int, int, str]] = []
        for name in _names(here, "configs"):
            if match := _SPAN.fullmatch(name):
                spans.append((int(match[1]), int(match[2]), name))
        spans = sorted(spans)[-_MOST_SPANS:]
        earlier = [
            {"step": first, "last": last, "config": paths_in(text.decode(errors="replace"))}
            for first, last, name in spans
            if (text := read_at(here, ["configs", name], _MOST)) is not None
        ]
    if not earlier:
        return now, []
    return now, [*earlier, {"step": 1 + max(last for _, last, _ in spans), "last": None, "config": now}]


def _names(here: int, name: str) -> list[str]:
    try:
        below = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=here)
    except OSError:
        return []
    try:
        return os.listdir(below)
    finally:
        os.close(below)


def difference(runs: Sequence[str], configs: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Returns the paths in which the configs of runs differ, and how many are the same."""
    paths = dict.fromkeys(path for config in configs for path in config)
    values = {path: [config.get(path) for config in configs] for path in paths}
    differing = {path: each for path, each in values.items() if len(set(each)) > 1}
    found = [{"path": path, "values": each} for path, each in differing.items()]
    return {"runs": list(runs), "paths": found, "same": len(paths) - len(differing)}
