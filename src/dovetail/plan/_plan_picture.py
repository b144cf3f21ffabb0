# SPDX-License-Identifier: Apache-2.0
"""A plan as a picture: what each way to train takes and costs, which of them nothing beats, and how chips scale."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dovetail.pictures import SMALL, WIDTH, Canvas, Color, Entry, Picture, Scale, draw_legend, scale_of, width_of
from dovetail.pictures import number as short

if TYPE_CHECKING:
    from ._plan import Plan, Row

_LEFT, _RIGHT, _TOP, _HIGH = 74, 20, 62, 280
_SCALING = 200  # Height.
_LINE = 19
_TICKS = 12
_NAMED = 8  # Ways to train that are listed.
_IN_SIGHT = 1.5  # Times what the largest option takes: what a chip has is drawn.
_WIDE_RANGE = 8.0  # From here on, an axis is logarithmic.
_AROUND = ((9, -7), (9, 13), (-9, -7), (-9, 13), (0, -12), (0, 20), (16, 4), (-16, 4))  # Where a number may stand.


class Option(NamedTuple):
    """A way to train."""

    group: str  # The chip.
    hardware: str
    how: str  # Mesh, remat and microbatches.
    chips: int
    days: float
    cost: float | None  # US dollars.
    gib: float  # Of a chip.
    limit: float | None
    rate: float  # Units a second.
    fits: bool
    late: bool = False


def plan_picture(name: str, found: "Plan") -> Picture:
    """Returns a picture of the rows of a plan."""
    options = [_option(found, row) for row in found.rows if math.isfinite(row.days)]
    what = f"{short(found.wanted.units)} {found.unit}s"
    title = f"{what}, by {found.wanted.by}"
    return options_picture(f"{name}: {title}" if name else title, options, f"{found.unit}s")


def _option(found: "Plan", row: "Row") -> Option:
    parts = row.cfg.num_microbatches
    how = f"{row.cfg.mesh.text() or 'one device'}, {row.cfg.remat}{f', {parts} parts' if parts > 1 else ''}"
    gib = row.gib if row.compiled_gib is None else row.compiled_gib
    rate = found.wanted.units / (row.days * 86_400) if row.days else 0.0
    chips = row.hardware.num_chips
    late = found.wanted.deadline is not None and row.days * 86_400 > found.wanted.deadline
    return Option(
        row.hardware.chip.name,
        row.hardware.name,
        how,
        chips,
        row.days,
        row.cost,
        gib,
        row.limit_gib,
        rate,
        row.fits,
        late,
    )


def options_picture(title: str, options: Sequence[Option], units: str) -> Picture:
    """Returns a picture of ways to train: time against cost, or against memory where cost says nothing more."""
    canvas = Canvas(WIDTH, title)
    canvas.text(20, 26, title, bold=True, size=14, room=WIDTH - 40)
    groups = list(dict.fromkeys(each.group for each in options))
    colors: dict[str, Color] = {group: i for i, group in enumerate(groups)}
    by_cost = all(each.cost is not None for each in options) and len({each.hardware for each in options}) > 1
    values = [each.cost or 0.0 if by_cost else each.gib for each in options]
    across = _axis([each.days for each in options], _LEFT, WIDTH - _RIGHT)
    most = max(values, default=0.0)
    limits = [] if by_cost else [each.limit for each in options if each.limit and each.limit < _IN_SIGHT * most]
    up = _axis([*values, *limits], _TOP + _HIGH, _TOP)
    canvas.text(_LEFT, _TOP - 12, "US dollars" if by_cost else "GiB of a chip", "dim")
    _draw_axes(canvas, across, up, "days", money=by_cost)
    if not by_cost:
        _draw_limits(canvas, options, colors, across, up)
    best = _best(options, values)
    chosen = [options[i] for i in best]
    line = [(across.place(options[i].days), up.place(values[i])) for i in best]
    if len(line) > 1:
        canvas.path(line, "dim", dash="4 3")
    places = [(across.place(each.days), up.place(value)) for each, value in zip(options, values, strict=True)]
    for (x, y), each in zip(places, options, strict=True):
        _draw_point(canvas, x, y, each, colors[each.group])
    _draw_numbers(canvas, [places[i] for i in best[:_NAMED]], places)
    y = draw_legend(canvas, _LEFT, _TOP + _HIGH + 44, WIDTH - _LEFT - _RIGHT, [Entry(g, colors[g]) for g in groups])
    y = _draw_marks(canvas, y + 14, options, front=len(line) > 1)
    y = _draw_chosen(canvas, y + 22, chosen[:_NAMED], colors)
    scaling = dict(_scaling(options))
    if any(len(each) > 2 for each in scaling.values()):
        y = _draw_scaling(canvas, y + 24, scaling, colors, units)
    return canvas.picture(y + 12)


def _axis(values: Sequence[float], start: float, end: float) -> Scale:
    usable = [value for value in values if value > 0 and math.isfinite(value)]
    wide = bool(usable) and max(usable) > _WIDE_RANGE * min(usable)
    return scale_of(values, start, end, log=wide, margin=0.08)


def _draw_axes(
    canvas: Canvas, across: Scale, up: Scale, label: str, *, money: bool = False, ticks: Sequence[float] = ()
) -> None:
    for tick, text in up.labels(5):
        canvas.line(across.start, up.place(tick), across.end, up.place(tick))
        shown = f"${text}" if money else text
        canvas.text(across.start - 8, up.place(tick) + 4, shown, "dim", anchor="end", size=SMALL)
    canvas.line(across.start, up.start, across.end, up.start, "edge")
    named = [(tick, f"{tick:,.0f}") for tick in ticks] or across.labels(7)
    for tick, text in named:
        at = across.place(tick)
        canvas.line(at, up.start, at, up.start + 4, "edge")
        canvas.text(at, up.start + 16, text, "dim", anchor="middle", size=SMALL)
    canvas.text((across.start + across.end) / 2, up.start + 33, label, "dim", anchor="middle")


def _draw_limits(
    canvas: Canvas, options: Sequence[Option], colors: Mapping[str, Color], across: Scale, up: Scale
) -> None:
    """Draws what a chip has, where that is in sight."""
    for group, limit in {each.group: each.limit for each in options}.items():
        if limit is not None and up.low <= limit <= up.high:
            canvas.line(across.start, up.place(limit), across.end, up.place(limit), colors[group], dash="6 3")
            text = f"a chip has {limit:.0f}"
            canvas.text(across.end - 4, up.place(limit) - 5, text, colors[group], anchor="end", size=SMALL)


def _best(options: Sequence[Option], values: Sequence[float]) -> list[int]:
    """Returns those that fit and that no other beats in both, the fastest first."""
    order = sorted((each.days, value, i) for i, (each, value) in enumerate(zip(options, values, strict=True)))
    found, least = list[int](), math.inf
    for _, value, i in order:
        if options[i].fits and value < least:
            found.append(i)
            least = value
    return found


def _draw_point(canvas: Canvas, x: float, y: float, option: Option, color: Color) -> None:
    cost = "" if option.cost is None else f", ${short(option.cost)}"
    hint = f"{option.hardware}, {option.how}: {option.days:.3g} days{cost}, {option.gib:.1f} GiB"
    if not option.fits:
        canvas.cross(x, y, color, reach=4, hint=f"{hint}, does not fit")
    else:
        canvas.circle(x, y, 4.5, "ground" if option.late else color, edge=color, hint=hint)


def _draw_numbers(canvas: Canvas, chosen: Sequence[tuple[float, float]], places: Sequence[tuple[float, float]]) -> None:
    """Writes the numbers of points beside them, where they cover no point and no other number."""
    taken = list(places)
    for number, (x, y) in enumerate(chosen, 1):
        spots = [(x + dx, y + dy) for dx, dy in _AROUND]

        def free(spot: tuple[float, float]) -> float:
            return min(math.hypot(spot[0] - px, spot[1] - 4 - py) for px, py in taken)

        at = max(spots, key=lambda spot: (min(free(spot), 9.0), -spots.index(spot)))
        canvas.text(at[0], at[1], str(number), anchor="middle", size=SMALL, bold=True)
        taken.append((at[0], at[1] - 4))


def _draw_marks(canvas: Canvas, y: float, options: Sequence[Option], *, front: bool) -> float:
    """Draws what marks mean, those that there are."""
    x = float(_LEFT)
    marks = [
        (front, "nothing else is both faster and takes less"),
        (any(each.late for each in options), "misses the deadline"),
        (any(not each.fits for each in options), "does not fit in memory"),
    ]
    for kind, (there, text) in enumerate(marks):
        if not there:
            continue
        if kind == 0:
            canvas.path([(x, y - 4), (x + 18, y - 4)], "dim", dash="4 3")
        elif kind == 1:
            canvas.circle(x + 9, y - 4, 4, "ground", edge="dim")
        else:
            canvas.cross(x + 9, y - 4, "dim", reach=4)
        canvas.text(x + 24, y, text, "dim", size=SMALL)
        x += 24 + width_of(text, SMALL) + 14
    return y


def _draw_chosen(canvas: Canvas, y: float, chosen: Sequence[Option], colors: Mapping[str, Color]) -> float:
    """Lists the best ways to train, by their numbers."""
    hardware = max((width_of(each.hardware) for each in chosen), default=0) + 12
    for number, each in enumerate(chosen, 1):
        canvas.text(_LEFT - 12, y, str(number), anchor="end", bold=True)
        canvas.circle(_LEFT, y - 4, 4, colors[each.group])
        canvas.text(_LEFT + 12, y, each.hardware)
        cost = "" if each.cost is None else f"${short(each.cost)}"
        days = f"{each.days:.3g} days"
        canvas.text(WIDTH - _RIGHT, y, cost, "dim", anchor="end")
        canvas.text(WIDTH - _RIGHT - 70, y, days, "dim", anchor="end")
        left = _LEFT + 12 + hardware
        canvas.text(left, y, each.how, "dim", room=WIDTH - _RIGHT - 70 - width_of(days) - 12 - left)
        y += _LINE
    return y - _LINE if chosen else y


def _scaling(options: Sequence[Option]) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Yields for each chip what the best way to train reaches, by the number of chips."""
    for group in dict.fromkeys(each.group for each in options):
        best: dict[int, float] = {}
        for each in options:
            if each.group == group and each.fits:
                best[each.chips] = max(best.get(each.chips, 0.0), each.rate)
        yield group, sorted(best.items())


def _draw_scaling(
    canvas: Canvas,
    y: float,
    scaling: Mapping[str, Sequence[tuple[int, float]]],
    colors: Mapping[str, Color],
    units: str,
) -> float:
    """Draws how much more is trained on with more chips."""
    points = [point for each in scaling.values() for point in each]
    canvas.text(_LEFT, y, f"{units} a second, by chips", bold=True)
    canvas.text(WIDTH - _RIGHT, y, "dashed: twice the chips, twice as fast", "dim", anchor="end", size=SMALL)
    across = scale_of([chips for chips, _ in points], _LEFT, WIDTH - _RIGHT, log=True, margin=0.06)
    up = scale_of([rate for _, rate in points], y + 12 + _SCALING, y + 12, log=True, margin=0.08)
    ticks = sorted({float(chips) for chips, _ in points})
    _draw_axes(canvas, across, up, "chips", ticks=ticks if len(ticks) <= _TICKS else ())
    for group, found in scaling.items():
        if not found:
            continue
        (first, rate), (last, _) = found[0], found[-1]
        ideal = rate * last / first
        reach = min(1.0, math.log(up.high / rate) / math.log(ideal / rate)) if ideal > rate else 0.0
        end = (across.place(first * (last / first) ** reach), up.place(rate * (ideal / rate) ** reach))
        if reach:
            canvas.path([(across.place(first), up.place(rate)), end], colors[group], width=1, dash="3 3", opacity=0.6)
        line = [(across.place(chips), up.place(each)) for chips, each in found]
        if len(line) > 1:
            canvas.path(line, colors[group], width=1.8)
        for (x, at), (chips, each) in zip(line, found, strict=True):
            canvas.circle(x, at, 3, colors[group], hint=f"{group}, {chips:,} chips: {short(each)} {units}/s")
    return up.start + 40
