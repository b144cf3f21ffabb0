# SPDX-License-Identifier: Apache-2.0
"""What came of the runs of a sweep: a table, a picture, and the best."""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from dovetail.launch import DONE, RESUMABLE, exit_code_in, record_in
from dovetail.progress import METRICS, json_lines

from ._table import printable, table

_LAST = 10  # Steps that were logged, of whose training loss the mean counts.
_LEFT, _TOP, _WIDE, _HIGH = 70, 30, 480, 260
_LINE = 16  # Between two lines of text.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_MOST_LABELS, _MOST_NAMED = 12, 12
_LARGEST = 1e30  # What is larger has diverged, and would press all else into a line.
_LABEL, _NAME = 34, 44  # Characters, below the picture and beside it.


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
        groups.setdefault(_without_seed(each.overrides), []).append(value)
    whole = {overrides: values for overrides, values in groups.items() if all(map(math.isfinite, values))}
    if not whole:
        return None
    choose = max if metric.rpartition("/")[2] == "accuracy" else min
    chosen = choose(whole, key=lambda overrides: statistics.fmean(whole[overrides]))
    return Best(chosen, statistics.fmean(whole[chosen]), len(whole[chosen]))


def _without_seed(overrides: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in overrides if not text.startswith("seed="))


Known = Mapping[tuple[str, ...], Mapping[str, Sequence[float]]]  # By the other settings, by the first: one a seed.


def picture(results: Sequence[Result], metric: str) -> str:
    """Returns a picture, as SVG: the metric by the first value that is swept, a line for each setting of the others."""
    groups: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for each in results:
        if each.value is not None and abs(each.value) < _LARGEST:
            first, *others = each.overrides
            groups.setdefault(_without_seed(others), {}).setdefault(first, []).append(each.value)
    firsts = list(dict.fromkeys(each.overrides[0] for each in results))
    named = [each for each in groups if each][:_MOST_NAMED]
    beside = 30 + 7 * max((len(_name(each)) for each in named), default=-1)
    high = max(_TOP + _HIGH + 60, _TOP + _LINE * (len(named) + 2))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDE + beside} {high}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(_LEFT, _TOP - 12, metric),
    ]
    if groups:
        values = [value for by_first in groups.values() for each in by_first.values() for value in each]
        scale = _Scale(min(values), max(values), firsts)
        parts += [*_axes(scale), *_plotted(scale, groups), *_names(named, len(groups))]
    else:
        parts.append(_text(_LEFT, _TOP + _LINE, "There are no results yet."))
    return "\n".join([*parts, "</svg>\n"])


class _Scale:
    """Where a value stands in the picture."""

    def __init__(self, low: float, high: float, firsts: Sequence[str]) -> None:
        margin = max((high - low) * 0.05, abs(high) * 1e-4)
        margin = margin if margin > 1 / _LARGEST else 0.5
        self.low, self.high, self.firsts = low - margin, high + margin, firsts

    def ticks(self) -> list[str]:
        """Returns four to ten round numbers."""
        room = (self.high - self.low) / 4
        power = math.floor(math.log10(room))
        step = next(10**power * each for each in (5, 2, 1) if 10**power * each <= room)
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        if -5 < power < 6:
            return [f"{number * step:.{max(-power, 0)}f}" for number in numbers]
        return [f"{number * step:.6g}" for number in numbers]

    def across(self, first: str) -> float:
        return round(_LEFT + _WIDE * (self.firsts.index(first) + 0.5) / len(self.firsts), 1)

    def up(self, value: float) -> float:
        return round(_TOP + _HIGH * (1 - (value - self.low) / (self.high - self.low)), 1)


def _axes(scale: _Scale) -> Iterator[str]:
    for tick in scale.ticks():
        yield f'<path d="M{_LEFT} {scale.up(float(tick))}H{_LEFT + _WIDE}" stroke="#e4e4e4"/>'
        yield _text(_LEFT - 8, scale.up(float(tick)) + 4, tick, "end")
    every = -(-len(scale.firsts) // _MOST_LABELS)
    room = _LABEL * 2 // (len(scale.firsts[::every]) + 1)
    for first in scale.firsts[::every]:
        label = _short(first.partition("=")[2], max(room, 5))
        yield _text(scale.across(first), _TOP + _HIGH + 18, label, "middle")
    path = _short(scale.firsts[0].partition("=")[0], 2 * _LABEL)
    yield _text(_LEFT + _WIDE / 2, _TOP + _HIGH + 42, path, "middle")


def _plotted(scale: _Scale, groups: Known) -> Iterator[str]:
    for (others, by_first), color in zip(groups.items(), itertools.cycle(_COLORS), strict=False):
        there = [first for first in scale.firsts if first in by_first]
        at = [f"{scale.across(first)} {scale.up(statistics.fmean(by_first[first]))}" for first in there]
        if not there[0].startswith("seed="):  # Which are in no order.
            yield f'<path d="M{" L".join(at)}" stroke="{color}" stroke-width="1.5" fill="none"/>'
        for first in there:
            for value in by_first[first]:
                title = escape(printable(f"{' '.join((first, *others))}: {value:.4g}"))
                place = f'cx="{scale.across(first)}" cy="{scale.up(value)}"'
                yield f'<circle {place} r="3" fill="{color}" fill-opacity="0.7"><title>{title}</title></circle>'


def _names(named: Sequence[tuple[str, ...]], count: int) -> Iterator[str]:
    """Yields what stands beside the picture: what each line is."""
    if not any(named):
        return
    x, y = _LEFT + _WIDE + 10, _TOP + 10
    for number, (others, color) in enumerate(zip(named, itertools.cycle(_COLORS), strict=False)):
        yield f'<circle cx="{x}" cy="{y + _LINE * number - 4}" r="3" fill="{color}"/>'
        yield _text(x + 8, y + _LINE * number, _name(others))
    if count > len(named):
        yield _text(x + 8, y + _LINE * len(named), f"and {count - len(named)} more")


def _name(others: Sequence[str]) -> str:
    """Returns what a line is, without all of the paths."""
    told = ((path.rpartition(".")[2], value) for path, _, value in (text.partition("=") for text in others))
    return _short(" ".join(f"{path}={value}" for path, value in told), _NAME)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(printable(text))}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
