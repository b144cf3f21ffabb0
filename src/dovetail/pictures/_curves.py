# SPDX-License-Identifier: Apache-2.0
"""Curves of runs: a panel for each metric, a line for each run, and what happened on the way."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ._canvas import SMALL, Canvas
from ._legend import Entry, draw_legend, line_look
from ._picture import Picture
from ._scale import LARGEST, Scale, finite, scale_of
from ._text import number, width_of

WIDTH = 760  # Of a page on GitHub, nearly.
_LEFT, _RIGHT, _TOP, _HIGH, _GAP = 62, 14, 30, 210, 34
_POINTS = 300  # Of a line: more are thinned.
_ENOUGH = 16  # Points of a line that is smoothed: of fewer, as of evaluations, each one counts.
_SHOWN = 40  # Points of a line that are few enough to be seen one by one.
_NEAR = 0.3  # Of the end of the axis: what begins before begins at 0.
_CLOSE = 8.0  # Pixels: marks that are closer are one.

Point = tuple[float, float]


class Curve(NamedTuple):
    """A metric of a run. `y` may have values that are not finite: they are marked, and the line has a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    restarts: Sequence[float] = ()  # Where the run went on after it had stopped, in `x`.

    def divided(self, by: float) -> "Curve":
        """Returns the curve in another unit along the axis."""
        return self._replace(x=[x / by for x in self.x], restarts=[x / by for x in self.restarts])


class Panel(NamedTuple):
    """A metric of several runs."""

    title: str
    curves: Sequence[Curve]


def curves_picture(
    panels: Sequence[Panel],
    x_label: str = "step",
    *,
    about: str = "curves of runs",
    smooth: float = 0.0,
    log: bool = False,
    time: bool = False,
) -> Picture:
    """Returns a picture of metrics by step, or by what else `x_label` says.

    Args:
        smooth: from 0 up to 1, the weight of what was before in an exponential mean; the plain line is behind it, pale.
        log: of what is measured.
        time: the axis is in seconds.
    """
    canvas = Canvas(WIDTH, about)
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    across = scale_of(_xs(panels), _LEFT, WIDTH - _RIGHT, margin=0.0)
    if 0 < across.low < _NEAR * across.high:
        across = across._replace(low=0.0)
    unit, seconds = _unit_of_time(across.high - across.low) if time else ("", 1.0)
    across = across._replace(low=across.low / seconds, high=across.high / seconds)
    top, marked = _TOP, set[str]()
    for number_, panel in enumerate(panels):
        last = number_ == len(panels) - 1
        inside = [curve.divided(seconds) for curve in panel.curves] if time else panel.curves
        marked |= _draw_panel(canvas, Panel(panel.title, inside), across, top, names, smooth, log, last=last)
        top += _HIGH + (_GAP if not last else 0)
    label = f"{x_label}, {unit}" if unit else x_label
    canvas.text((_LEFT + WIDTH - _RIGHT) / 2, top + 34, label, "dim", anchor="middle")
    bottom = draw_legend(canvas, _LEFT, top + 46, WIDTH - _LEFT - _RIGHT, _entries(panels, names))
    return canvas.picture(_draw_marks(canvas, bottom, marked) + 12)


def _xs(panels: Sequence[Panel]) -> Iterator[float]:
    return (x for panel in panels for curve in panel.curves for x in curve.x)


def _unit_of_time(seconds: float) -> tuple[str, float]:
    """Returns the unit that suits a span, and its seconds."""
    units = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0}
    return next(((name, unit) for name, unit in units.items() if seconds >= 2 * unit), ("seconds", 1.0))


def _entries(panels: Sequence[Panel], names: Sequence[str]) -> list[Entry]:
    """Returns the lines of the legend; with one panel, also where each run ended."""
    found: list[Entry] = []
    for i, name in enumerate(names):
        color, dash = line_look(i)
        own = [curve for panel in panels for curve in panel.curves if curve.name == name]
        last = number(own[0].y[-1]) if len(panels) == 1 and own and own[0].y else ""
        found.append(Entry(name, color, dash, last))
    return found


def _draw_panel(
    canvas: Canvas,
    panel: Panel,
    across: Scale,
    top: float,
    names: Sequence[str],
    smooth: float,
    log: bool,
    *,
    last: bool,
) -> set[str]:
    """Draws a metric; returns the marks in it."""
    lines = [_thinned(curve, across, smooth, log) for curve in panel.curves]
    values = [y for line in lines for y in (*line.low, *line.high, *line.smooth)]
    up = scale_of(values, top + _HIGH, top, log=log)
    canvas.text(_LEFT, top - 10, panel.title, bold=True, room=WIDTH - _LEFT - _RIGHT)
    for tick, label in up.labels(5):
        canvas.line(_LEFT, up.place(tick), WIDTH - _RIGHT, up.place(tick))
        canvas.text(_LEFT - 8, up.place(tick) + 4, label, "dim", anchor="end", size=SMALL)
    _draw_across(canvas, across, top + _HIGH, named=last)
    marked: set[str] = set()
    for curve, line in zip(panel.curves, lines, strict=True):
        index = names.index(curve.name)
        _draw_line(canvas, line, across, up, index, faint=smooth > 0 and len(line.x) >= _ENOUGH)
        marked |= _draw_events(canvas, curve, across, up, index)
    if not values:
        middle = (across.start + across.end) / 2
        canvas.text(middle, top + _HIGH / 2, "nothing was measured", "dim", anchor="middle")
    return marked


def _draw_across(canvas: Canvas, across: Scale, bottom: float, *, named: bool) -> None:
    canvas.line(across.start, bottom, across.end, bottom, "edge")
    for tick, label in across.labels(7):
        at = across.place(tick)
        canvas.line(at, bottom, at, bottom + 4, "edge")
        if named:
            half = width_of(label, SMALL) / 2
            canvas.text(min(at, WIDTH - half), bottom + 16, label, "dim", anchor="middle", size=SMALL)


class _Line(NamedTuple):
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    smooth: list[float]
    gaps: set[int]  # Points before which values are missing that were not finite.


def _thinned(curve: Curve, across: Scale, smooth: float, log: bool) -> _Line:
    """Returns a line with at most so many points: the mean of each part of the axis, and the least and the most."""
    kept = [i for i in finite(curve.y) if curve.y[i] > 0 or not log]
    smoothed = _smoothed([curve.y[i] for i in kept], smooth if len(kept) >= _ENOUGH else 0.0)
    line = _Line([], [], [], [], [], set())
    buckets: dict[int, list[int]] = {}
    span = max(across.high - across.low, 1e-300)
    for place, i in enumerate(kept):
        bucket = place if len(kept) <= _POINTS else int((curve.x[i] - across.low) / span * _POINTS)
        buckets.setdefault(bucket, []).append(place)
    before = -1
    for places in buckets.values():
        own = [curve.y[kept[place]] for place in places]
        if kept[places[0]] != before + 1 and line.x:
            line.gaps.add(len(line.x))
        before = kept[places[-1]]
        line.x.append(math.fsum(curve.x[kept[place]] for place in places) / len(places))
        line.y.append(math.fsum(own) / len(own))
        line.low.append(min(own))
        line.high.append(max(own))
        line.smooth.append(smoothed[places[-1]])
    return line


def _smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Returns exponential means of the values so far, without the pull of a first value that is not there."""
    found, mean, total = list[float](), 0.0, 0.0
    for value in values:
        mean, total = weight * mean + (1 - weight) * value, weight * total + (1 - weight)
        found.append(mean / total)
    return found


def _draw_line(canvas: Canvas, line: _Line, across: Scale, up: Scale, index: int, *, faint: bool) -> None:
    color, dash = line_look(index)
    for piece in _pieces(line):
        xs = [across.place(line.x[i]) for i in piece]
        if any(line.low[i] < line.high[i] for i in piece):
            tops = [(x, up.place(line.high[i])) for x, i in zip(xs, piece, strict=True)]
            bottoms = [(x, up.place(line.low[i])) for x, i in zip(xs, piece, strict=True)]
            canvas.area([*tops, *reversed(bottoms)], color, opacity=0.12 if faint else 0.18)
        plain = [(x, up.place(line.y[i])) for x, i in zip(xs, piece, strict=True)]
        if faint:
            canvas.path(plain, color, width=1, opacity=0.3)
            plain = [(x, up.place(line.smooth[i])) for x, i in zip(xs, piece, strict=True)]
        if len(plain) > 1:
            canvas.path(plain, color, width=1.8, dash=dash)
        for x, y in plain if len(line.x) <= _SHOWN else plain if len(plain) == 1 else ():
            canvas.circle(x, y, 2.2, color)


def _pieces(line: _Line) -> Iterator[list[int]]:
    piece: list[int] = []
    for i in range(len(line.x)):
        if i in line.gaps:
            yield piece
            piece = []
        piece.append(i)
    if piece:
        yield piece


def _draw_events(canvas: Canvas, curve: Curve, across: Scale, up: Scale, index: int) -> set[str]:
    """Marks what was not finite at the top, and restarts at the bottom; returns which of these there are."""
    color, _ = line_look(index)
    bad = [x for x, y in zip(curve.x, curve.y, strict=True) if not math.isfinite(y) or abs(y) >= LARGEST]
    for at, x in _apart(bad, across):
        canvas.cross(at, up.end + 5, color, hint=f"{curve.name}: not finite at {number(x)}")
    for at, x in _apart(curve.restarts, across):
        canvas.line(at, up.end, at, up.start, color, dash="1 4")
        mark = [(at - 4, up.start + 1), (at + 4, up.start + 1), (at, up.start - 6)]
        canvas.area(mark, color, hint=f"{curve.name}: went on after {number(x)}")
    return ({"bad"} if bad else set()) | ({"restart"} if curve.restarts else set())


def _apart(values: Sequence[float], scale: Scale) -> Iterator[tuple[float, float]]:
    """Yields places of marks with their values, but for those that would cover the one before."""
    last = -math.inf
    for x in sorted(values):
        if (at := scale.place(x)) - last >= _CLOSE:
            last = at
            yield at, x


def _draw_marks(canvas: Canvas, y: float, marked: set[str]) -> float:
    """Draws what marks mean; returns where that ends."""
    if not marked:
        return y
    x, y = _LEFT, y + 13
    if "bad" in marked:
        canvas.cross(x + 9, y - 4, "dim")
        canvas.text(x + 24, y, "not finite", "dim", size=SMALL)
        x += 120
    if "restart" in marked:
        canvas.area([(x + 5, y), (x + 13, y), (x + 9, y - 7)], "dim")
        canvas.text(x + 24, y, "went on after a stop", "dim", size=SMALL)
    return y + 6
