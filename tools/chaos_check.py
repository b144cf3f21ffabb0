# SPDX-License-Identifier: Apache-2.0
"""What must hold after a run was broken: the same bits, each row once, no process left."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chaos_run import ROWS


def final_history(starts: Sequence[Mapping[str, Any]], control: Path) -> list[tuple[int, int, int]]:
    """Returns (start, last step, processes) for the spans of steps that count; what was made twice counts once."""
    spans: list[tuple[int, int, int]] = []
    for start in starts:
        given = _given(control, start["start"], 0)
        if not given:
            continue
        first, last = min(given), max(given)
        spans = [
            (number, min(end, first - 1), count) for number, end, count in spans if _first(control, number) < first
        ]
        spans.append((start["start"], last, start["processes"]))
    return spans


def _first(control: Path, number: int) -> int:
    return min(_given(control, number, 0))


def _given(control: Path, start: int, rank: int) -> dict[int, list[int]]:
    """Returns the rows that a process was given, by step."""
    file = control / f"given.{start}.{rank}"
    found: dict[int, list[int]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            step, rows = json.loads(line)
        except ValueError:  # Torn: it was killed there.
            continue
        found[step] = rows
    return found


def rows_trained_on(control: Path, history: Sequence[tuple[int, int, int]], steps: int) -> list[str]:
    """Returns what is wrong with the rows of the steps that count: each must be there once."""
    problems: list[str] = []
    if not history or history[-1][1] != steps:
        return [f"the history ends after step {history[-1][1] if history else 0}, not {steps}"]
    first = 1
    for number, last, processes in history:
        given = [_given(control, number, rank) for rank in range(processes)]
        for step in range(first, last + 1):
            rows = sorted(row for each in given for row in each.get(step, ()))
            wanted = list(range((step - 1) * ROWS, step * ROWS))
            if rows != wanted:
                problems.append(f"step {step} of start {number} was given rows {rows}, expected {wanted}")
        first = last + 1
    return problems


def difference(found: str, wanted: str) -> list[str]:
    """Returns what differs between the newest checkpoints in two places, bit by bit."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    a, b = _newest(found), _newest(wanted)
    if a.keys() != b.keys():
        return [f"they do not hold the same: {sorted(a.keys() ^ b.keys())}"]
    return [f"{name} differs" for name in a if a[name] != b[name]]


def _newest(where: str) -> dict[str, Any]:
    """Returns step, position in the data, and all leaves as bytes."""
    import jax

    from dovetail.checkpoint import Checkpointer

    with Checkpointer.Config(directory=where, on_corruption="error").build() as checkpointer:
        step = checkpointer.latest()
        infos = checkpointer.leaves(step)
        place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        wanted = {
            path: jax.ShapeDtypeStruct(info.shape, np.dtype(info.dtype), sharding=place) for path, info in infos.items()
        }
        restored = checkpointer.restore_parts(wanted)
    leaves = {path: np.asarray(leaf).tobytes() for path, leaf in restored.state.items()}
    return {"the step": step, "the position in the data": restored.data_state, **leaves}


def orphans(run: Path) -> list[tuple[int, str]]:
    """Returns the processes that still have a file of the run open, and their command lines."""
    found: list[tuple[int, str]] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [os.readlink(each) for each in (process / "fd").iterdir()]
            if any(each.startswith(f"{run}/") for each in opened):
                found.append((int(process.name), (process / "cmdline").read_text().replace("\0", " ")))
        except OSError:  # It is gone, or not ours.
            continue
    return found
