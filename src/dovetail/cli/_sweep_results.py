# SPDX-License-Identifier: Apache-2.0
"""What came of the runs of a sweep: a table, and the best."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.launch import DONE, RESUMABLE, exit_code_in, record_in
from dovetail.progress import METRICS, json_lines

from ._table import table

_LAST = 10  # Steps that were logged, of whose training loss the mean counts.


class Result(NamedTuple):
    """One run."""

    overrides: tuple[str, ...]
    state: str
    step: int
    value: float | None  # Of the metric; not finite if the run has diverged.


def result_of(
    directory: Path, overrides: tuple[str, ...], metric: str, told: Mapping[str, str] | None = None
) -> Result:
    """Returns what the directory of a run says, and the engine, if it has told of the run: its state by directory."""
    by_step: dict[int, float] = {}
    step = 0
    for at, record in _records(directory):
        step = max(step, at)
        if (value := _number_in(record.get(metric))) is not None:
            by_step[at] = value  # A run that was killed makes some steps again.
    values = [by_step[at] for at in sorted(by_step)]
    chosen = values[-1:] if "/" in metric else values[-_LAST:]
    return Result(overrides, _state(directory, told or {}), step, sum(chosen) / len(chosen) if chosen else None)


def _state(directory: Path, told: Mapping[str, str]) -> str:
    code, by_engine = exit_code_in(directory), told.get(str(directory), "")
    if code != DONE and by_engine in ("waiting", "running", "ending"):
        return by_engine
    if code is not None:
        return {DONE: "done", RESUMABLE: "saved"}.get(code, f"ended with {code}")
    record = record_in(directory)
    return by_engine or ("waiting" if record is None else record.info().state)


def measured(directory: Path) -> list[str]:
    """Returns the names of all that a run has measured."""
    found = {name for _, record in _records(directory) for name in record if _number_in(record[name]) is not None}
    return sorted(found - {"step", "time"})


def _number_in(value: object) -> float | None:
    """Returns a number, also one for which JSON has no word; None for anything else."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _records(directory: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yields steps and what was written of them. What is torn, or not ours, counts not."""
    for found in json_lines(directory / METRICS):
        if isinstance(step := found.get("step"), int) and not isinstance(step, bool):
            yield step, found


def table_of(results: Sequence[Result], metric: str) -> str:
    """Returns the results in columns: a column for each path that is swept."""
    paths = [text.partition("=")[0] for text in results[0].overrides] if results else []
    rows = [
        (*(text.partition("=")[2] for text in each.overrides), each.state, each.step, _number(each.value))
        for each in results
    ]
    return table((*paths, "state", "step", metric), rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


class Best(NamedTuple):
    """The best combination."""

    overrides: tuple[str, ...]  # Without the seed.
    value: float  # The mean over seeds.
    seeds: int


def best(results: Sequence[Result], metric: str) -> Best | None:
    """Returns the combination with the lowest mean over its seeds; of an accuracy, the highest.

    One of whose runs is not done, or has diverged, is none: the mean of the others would flatter it.

    >>> rows = [Result(("a=1", "seed=0"), "done", 9, 2.0), Result(("a=2", "seed=0"), "done", 9, 1.0)]
    >>> best(rows, "loss")
    Best(overrides=('a=2',), value=1.0, seeds=1)
    """
    groups: dict[tuple[str, ...], list[float]] = {}
    for each in results:
        value = each.value if each.state == "done" and each.value is not None else math.nan
        groups.setdefault(without_seed(each.overrides), []).append(value)
    whole = {overrides: values for overrides, values in groups.items() if all(map(math.isfinite, values))}
    if not whole:
        return None
    choose = max if metric.rpartition("/")[2] == "accuracy" else min
    chosen = choose(whole, key=lambda overrides: statistics.fmean(whole[overrides]))
    return Best(chosen, statistics.fmean(whole[chosen]), len(whole[chosen]))


def without_seed(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the settings of a combination, which runs with different seeds share."""
    return tuple(text for text in overrides if not text.startswith("seed="))
