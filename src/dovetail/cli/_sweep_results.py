# SPDX-License-Identifier: Apache-2.0
"""What came of the runs of a sweep: a table, a picture, and the best."""

import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.launch import DONE, RESUMABLE, exit_code_in, record_in

from ._table import table

_LAST = 10  # Steps that were logged, of whose training loss the mean counts.
_LEFT, _TOP, _WIDE, _HIGH = 70, 20, 480, 260


class Result(NamedTuple):
    """One run."""

    overrides: tuple[str, ...]
    state: str
    step: int
    value: float | None  # Of the metric.


def result_of(directory: Path, overrides: tuple[str, ...], metric: str) -> Result:
    """Returns what the directory of a run says."""
    code = exit_code_in(directory)
    state = "running" if code is None else {DONE: "done", RESUMABLE: "saved"}.get(code, f"ended with {code}")
    if code is None and not (directory / "launch" / "events.jsonl").exists():
        state = "waiting" if record_in(directory) is not None else "missing"
    values: list[float] = []
    step = 0
    for record in _records(directory / "metrics.jsonl"):
        if isinstance(at := record.get("step"), int):
            step = max(step, at)
        if isinstance(value := record.get(metric), float | int) and math.isfinite(value):
            values.append(float(value))
    chosen = values[-1:] if "/" in metric else values[-_LAST:]
    return Result(overrides, state, step, statistics.fmean(chosen) if chosen else None)


def _records(file: Path) -> Iterator[dict[str, object]]:
    try:
        lines = file.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:  # Torn.
            continue
        if isinstance(found, dict):
            yield found


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


def best(results: Sequence[Result], metric: str) -> Best | None:
    """Returns the combination with the lowest mean over its seeds (of an accuracy, the highest), of runs that are done.

    >>> rows = [Result(("a=1", "seed=0"), "done", 9, 2.0), Result(("a=2", "seed=0"), "done", 9, 1.0)]
    >>> best(rows, "loss")
    Best(overrides=('a=2',), value=1.0)
    """
    groups: dict[tuple[str, ...], list[float]] = {}
    for each in results:
        if each.state == "done" and each.value is not None:
            groups.setdefault(tuple(t for t in each.overrides if not t.startswith("seed=")), []).append(each.value)
    means = {overrides: statistics.fmean(values) for overrides, values in groups.items()}
    if not means:
        return None
    choose = max if metric.rpartition("/")[2] == "accuracy" else min
    chosen = choose(means, key=lambda overrides: means[overrides])
    return Best(chosen, means[chosen])


def picture(results: Sequence[Result], metric: str) -> str:
    """Returns a picture, as SVG: the metric by the first value that is swept, a line for each setting of the others."""
    known = [(each.overrides, each.value) for each in results if each.value is not None]
    shown = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDE + 20} {_TOP + _HIGH + 50}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    if known:
        shown += _plotted(known, metric, list(dict.fromkeys(each.overrides[0] for each in results)))
    return "\n".join([*shown, "</svg>\n"])


def _plotted(known: Sequence[tuple[tuple[str, ...], float]], metric: str, firsts: Sequence[str]) -> list[str]:
    low, high = min(value for _, value in known), max(value for _, value in known)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)

    def place(first: str, value: float) -> tuple[float, float]:
        across = (firsts.index(first) + 0.5) / len(firsts)
        up = (value - low) / (high - low)
        return round(_LEFT + _WIDE * across, 1), round(_TOP + _HIGH * (1 - up), 1)

    parts: list[str] = []
    for value in (low + (high - low) * share / 4 for share in range(5)):
        _, y = place(firsts[0], value)
        parts.append(f'<path d="M{_LEFT} {y}H{_LEFT + _WIDE}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{value:.4g}</text>')
    for first in firsts:
        x, _ = place(first, low)
        text = _escaped(first.partition("=")[2])
        parts.append(f'<text x="{x}" y="{_TOP + _HIGH + 18}" text-anchor="middle">{text}</text>')
    path = _escaped(firsts[0].partition("=")[0])
    parts.append(f'<text x="{_LEFT + _WIDE / 2}" y="{_TOP + _HIGH + 40}" text-anchor="middle">{path}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 6}">{_escaped(metric)}</text>')
    colors = itertools.cycle(("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"))
    groups: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for (first, *others), value in known:
        rest = tuple(text for text in others if not text.startswith("seed="))
        groups.setdefault(rest, {}).setdefault(first, []).append(value)
    for (rest, by_first), color in zip(groups.items(), colors, strict=False):
        at = [place(first, statistics.fmean(by_first[first])) for first in firsts if first in by_first]
        parts.append(f'<path d="M{" L".join(f"{x} {y}" for x, y in at)}" stroke="{color}" fill="none"/>')
        for first, values in by_first.items():
            for value in values:
                x, y = place(first, value)
                title = _escaped(" ".join((first, *rest)))
                parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"><title>{title}</title></circle>')
    return parts


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
