# SPDX-License-Identifier: Apache-2.0
"""From what a run has logged to a curve: which values count, over what they are drawn, and how they are thinned."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ._records import Column, Heads

Axis = Literal["step", "units", "time"]
AXES: tuple[Axis, ...] = ("step", "units", "time")
_MOST = np.iinfo(np.int64).max
_BAD = 200  # Places of values that are not finite, or of restarts, that are told of.


class Points(NamedTuple):
    """The values of a metric that count, in their order."""

    rows: Any
    steps: Any
    values: Any


class Curve(NamedTuple):
    """What is drawn of a metric: `low` and `high` only where it is thinned."""

    x: list[float]
    y: list[float]
    low: list[float] | None
    high: list[float] | None
    bad: list[float]
    restarts: list[float]
    total: int


def points(heads: Heads, column: Column, pace: Column) -> Points:
    """Returns the values of a metric that count.

    After a restart, or on going back to before a bad step, steps are made again: what was logged of those after the one
    gone back to counts no more. `pace` is the metric that each logged step has, the loss: its steps say when that was.
    """
    steps = heads.steps[column.at]
    kept = steps >= 0
    if len(pace.at):
        paces = heads.steps[pace.at]
        paces = np.where(paces >= 0, paces, _MOST)
        least = np.append(np.minimum(paces, later(paces)), _MOST)  # Of each row of the loss and those after it.
        kept &= steps <= least[np.searchsorted(pace.at, column.at, side="right")]
    kept &= steps < later(np.where(kept, steps, _MOST))
    return Points(column.at[kept], steps[kept], column.values[kept])


def later(steps: Any) -> Any:
    """Returns, for each place, the least of what comes after it.

    >>> later(np.array([1, 5, 3, 4]))[:3].tolist()
    [3, 3, 4]
    """
    if not len(steps):
        return steps
    ahead = np.append(steps[1:], _MOST)
    return np.minimum.accumulate(ahead[::-1])[::-1]


def restarts(heads: Heads, pace: Column, resumed: Sequence[float]) -> Any:
    """Returns the rows of the loss at which the run went on: where steps go back, and those after `resumed`, times."""
    rows = pace.at[heads.steps[pace.at] >= 0]
    back = rows[1:][np.diff(heads.steps[rows]) <= 0]
    if not resumed or not len(rows):
        return back
    times = np.maximum.accumulate(heads.times[rows])
    after = np.searchsorted(times, np.array(resumed))
    # One that is before all rows is of a start that logged nothing: what it shows is the first row there is.
    return np.unique(np.concatenate([back, rows[after[(after > 0) & (after < len(rows))]]]))


def seconds(heads: Heads, first: float | None) -> Any:
    """Returns the time of each row since the first start; a clock that is set back costs nothing."""
    if not heads.rows:
        return heads.times
    known = heads.steps >= 0
    times = heads.times[known]
    begin = times[:1] if first is None or not len(times) or times[0] < first else np.array([first])
    passed = np.cumsum(np.maximum(np.diff(np.concatenate([begin, times])), 0.0))
    found = np.zeros(heads.rows)
    found[known] = passed
    return found


def units(count: Points) -> tuple[Any, Any]:
    """Returns steps, and how many units the steps up to each have had; steps between two that were logged as the later.

    `count` are the units of a step, by step.
    """
    if not len(count.steps):
        return np.zeros(1), np.zeros(1)
    steps = count.steps.astype(float)
    of_step = np.where(np.isfinite(count.values), count.values, 0.0)
    return np.append(0.0, steps), np.append(0.0, np.cumsum(of_step * np.diff(steps, prepend=0.0)))


def curve(x: Any, y: Any, marks: Any, *, begin: float | None, end: float | None, most: int) -> Curve:
    """Returns values over an axis, which never falls, from a place to a place, in at most so many points.

    `marks` are the places of restarts.
    """
    inside = np.ones(len(x), bool)
    for limit, least in ((begin, True), (end, False)):
        if limit is not None:
            inside &= x >= limit if least else x <= limit
            marks = marks[marks >= limit if least else marks <= limit]
    x, y = x[inside], y[inside]
    good, count = np.isfinite(y), len(x)
    bad, shown = _some(x[~good]), _some(marks)
    x, y = x[good], y[good]
    if len(x) <= most:
        return Curve(_plain(x, 12), _plain(y), None, None, bad, shown, count)
    edges = np.linspace(x[0], x[-1], most + 1)[:-1]
    starts = np.unique(np.searchsorted(x, edges, side="left"))
    sizes = np.diff(np.append(starts, len(x)))
    low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
    with np.errstate(over="ignore"):
        # A mean is within its bounds, whatever rounding does.
        mean = np.clip(np.add.reduceat(y / np.repeat(sizes, sizes), starts), low, high)
    place = np.add.reduceat(x, starts) / sizes
    return Curve(_plain(place, 12), _plain(mean), _plain(low), _plain(high), bad, shown, count)


def _some(places: Any) -> list[float]:
    """Returns places, some of them if there are many."""
    if len(places) > _BAD:
        places = places[np.linspace(0, len(places) - 1, _BAD).astype(int)]
    return _plain(places, 12)


def _plain(values: Any, digits: int = 7) -> list[float]:
    """Returns numbers with as many digits as can be seen: fewer bytes to send.

    >>> _plain(np.array([1.0, 2.00000001, 1e-9 / 3]))
    [1.0, 2.0, 3.333333e-10]
    """
    return [float(f"{value:.{digits}g}") for value in values.tolist() if not math.isnan(value)]
