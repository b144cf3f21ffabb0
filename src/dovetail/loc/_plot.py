# SPDX-License-Identifier: Apache-2.0
"""The plot of growth as SVG: lines of code against models, and against variants.

All axes are logarithmic and of the same scale, so that the slope of a line is its exponent.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.pictures import SMALL, Canvas, Entry, draw_legend

Point = tuple[float, float]

_DECADE = 80  # Pixels.
_TOP, _LEFT, _GAP, _LINES = 36, 70, 50, 4  # Lines of code, up to 10 to the power of 4.
_BOTTOM = _TOP + _LINES * _DECADE
_DASHES = ("", "6 4")


class _Panel(NamedTuple):
    label: str
    left: float
    decades: int

    @property
    def right(self) -> float:
        return self.left + self.decades * _DECADE

    def place(self, x: float, y: float) -> Point:
        across, up = (math.log10(value) * _DECADE for value in (x, y))
        return self.left + across, _BOTTOM - up


_MODELS = _Panel("models, each with all variants", _LEFT, 3)
_VARIANTS = _Panel("variants, in all models", _MODELS.right + _GAP, 2)
_WIDTH, _HEIGHT = _VARIANTS.right + 175, _BOTTOM + 56


def growth_plot(record: Mapping[str, Any]) -> str:
    """Returns the plot of the JSON that `dovetail loc growth` prints, for the features that all designs have."""
    designs = {"dovetail": record["features"], **record["designs"]}
    canvas = Canvas(_WIDTH, "lines of code against models, and against variants")
    _draw_axes(canvas)
    entries: list[Entry] = []
    for color, name in enumerate(designs):
        for feature, dash in zip(("rope", "moe"), _DASHES, strict=True):
            for line in _lines(designs[name][feature]["points"]):
                canvas.path(line, color, width=2, dash=dash)
                for x, y in line:
                    canvas.circle(x, y, 3, color)
            entries.append(Entry(f"{name}, {feature}", color, dash))
    draw_legend(canvas, _VARIANTS.right + 16, _TOP, _WIDTH - _VARIANTS.right - 20, entries)
    return canvas.picture(_HEIGHT).svg


def _lines(points: Sequence[Sequence[float]]) -> Iterator[list[Point]]:
    """Yields, in each panel, a line through the points at the largest number of what the other panel shows."""
    models, variants = (max(point[i] for point in points) for i in (0, 1))
    yield sorted(_MODELS.place(n, lines) for n, m, lines in points if m == variants)
    yield sorted(_VARIANTS.place(m, lines) for n, m, lines in points if n == models)


def _draw_axes(canvas: Canvas) -> None:
    for panel in (_MODELS, _VARIANTS):
        for decade in range(_LINES + 1):
            _, y = panel.place(1, 10.0**decade)
            canvas.line(panel.left, y, panel.right, y)
        for decade in range(panel.decades + 1):
            x, _ = panel.place(10.0**decade, 1)
            canvas.line(x, _TOP, x, _BOTTOM)
            canvas.text(x, _BOTTOM + 18, f"{10**decade:,}", "dim", anchor="middle", size=SMALL)
        canvas.text((panel.left + panel.right) / 2, _BOTTOM + 40, panel.label, "dim", anchor="middle")
    for decade in range(_LINES + 1):
        _, y = _MODELS.place(1, 10.0**decade)
        canvas.text(_LEFT - 8, y + 4, f"{10**decade:,}", "dim", anchor="end", size=SMALL)
    canvas.text(_LEFT - 8, _TOP - 14, "lines of code", bold=True)
