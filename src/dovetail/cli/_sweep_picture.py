# SPDX-License-Identifier: Apache-2.0
"""What came of the runs of a sweep, as a picture: the metric by the first value, a line for each of the others."""

import statistics
from collections.abc import Mapping, Sequence

from dovetail.pictures import LARGEST, SMALL, WIDTH, Canvas, Entry, Picture, Scale, draw_legend, line_look, scale_of

from ._sweep_results import Result, without_seed

_LEFT, _RIGHT, _TOP, _HIGH = 70, 20, 34, 260
_MOST_LABELS, _MOST_NAMED = 12, 12

Known = Mapping[tuple[str, ...], Mapping[str, Sequence[float]]]  # By the other settings, by the first: one a seed.


def sweep_picture(results: Sequence[Result], metric: str) -> Picture:
    """Returns a picture: the metric by the first value that is swept, a line for each setting of the others."""
    groups: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for each in results:
        if each.value is not None and abs(each.value) < LARGEST:
            first, *others = each.overrides
            groups.setdefault(without_seed(others), {}).setdefault(first, []).append(each.value)
    firsts = list(dict.fromkeys(each.overrides[0] for each in results))
    canvas = Canvas(WIDTH, f"{metric} of a sweep")
    canvas.text(_LEFT, _TOP - 12, metric, bold=True, room=WIDTH - _LEFT - _RIGHT)
    if not groups:
        canvas.text(_LEFT, _TOP + 16, "There are no results yet.", "dim")
    values = [value for by_first in groups.values() for each in by_first.values() for value in each]
    up = scale_of(values, _TOP + _HIGH, _TOP)
    if groups:
        _draw_axes(canvas, up, firsts)
    for index, (others, by_first) in enumerate(groups.items()):
        _draw_group(canvas, up, firsts, others, by_first, index)
    named = [others for others in groups if others][:_MOST_NAMED]
    order = list(groups)
    entries = [Entry(_name(others), line_look(order.index(others))[0], "") for others in named]
    y = draw_legend(canvas, _LEFT, _TOP + _HIGH + 54, WIDTH - _LEFT - _RIGHT, entries)
    if named and len(groups) > len(named):
        canvas.text(_LEFT + 24, y + 13, f"and {len(groups) - len(named)} more", "dim")
        y += 19
    return canvas.picture(y + 12)


def _across(firsts: Sequence[str], first: str) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * (firsts.index(first) + 0.5) / len(firsts)


def _draw_axes(canvas: Canvas, up: Scale, firsts: Sequence[str]) -> None:
    right, bottom = WIDTH - _RIGHT, _TOP + _HIGH
    for tick, label in up.labels(5):
        canvas.line(_LEFT, up.place(tick), right, up.place(tick))
        canvas.text(_LEFT - 8, up.place(tick) + 4, label, "dim", anchor="end", size=SMALL)
    shown = firsts[:: -(-len(firsts) // _MOST_LABELS)]
    room = (right - _LEFT) / len(shown) - 6
    for first in shown:
        label = first.partition("=")[2]
        canvas.text(_across(firsts, first), bottom + 18, label, "dim", anchor="middle", size=SMALL, room=room)
    path = firsts[0].partition("=")[0]
    canvas.text((_LEFT + right) / 2, bottom + 40, path, "dim", anchor="middle", room=right - _LEFT)


def _draw_group(
    canvas: Canvas,
    up: Scale,
    firsts: Sequence[str],
    others: tuple[str, ...],
    by_first: Mapping[str, Sequence[float]],
    index: int,
) -> None:
    """Draws the runs that differ in the first value and in the seed: a point each, a line through the means."""
    color, _ = line_look(index)
    there = [first for first in firsts if first in by_first]
    if not there[0].startswith("seed=") and len(there) > 1:  # Which are in no order.
        line = [(_across(firsts, first), up.place(statistics.fmean(by_first[first]))) for first in there]
        canvas.path(line, color)
    for first in there:
        for value in by_first[first]:
            hint = f"{' '.join((first, *others))}: {value:.4g}"
            canvas.circle(_across(firsts, first), up.place(value), 3, color, hint=hint)


def _name(others: Sequence[str]) -> str:
    """Returns what a line is, without all of the paths."""
    told = ((path.rpartition(".")[2], value) for path, _, value in (text.partition("=") for text in others))
    return " ".join(f"{path}={value}" for path, value in told)
