# SPDX-License-Identifier: Apache-2.0
"""The plot of growth as SVG: lines of code against models, and against variants.

All axes are logarithmic and of the same scale, so that the slope of a line is its exponent.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Point = tuple[float, float]

_DECADE = 80  # Pixels.
_TOP, _LEFT, _GAP, _LINES = 36, 70, 50, 4  # Lines of code, up to 10 to the power of 4.
_BOTTOM = _TOP + _LINES * _DECADE
_COLORS = ("#0072b2", "#d55e00", "#009e73")  # Told apart by the colour-blind.
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
        return round(self.left + across, 1), round(_BOTTOM - up, 1)


_MODELS = _Panel("models, each with all variants", _LEFT, 3)
_VARIANTS = _Panel("variants, in all models", _MODELS.right + _GAP, 2)
_WIDTH, _HEIGHT = _VARIANTS.right + 150, _BOTTOM + 56


def growth_plot(record: Mapping[str, Any]) -> str:
    """Returns the plot of the JSON that `dovetail loc growth` prints, for the features that all designs have."""
    designs = {"dovetail": record["features"], **record["designs"]}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *_axes(),
    ]
    for i, (name, color) in enumerate(zip(designs, _COLORS, strict=True)):
        for j, (feature, dash) in enumerate(zip(("rope", "moe"), _DASHES, strict=True)):
            look = f'stroke="{color}" stroke-width="2" fill="none" stroke-dasharray="{dash}"'
            points = designs[name][feature]["points"]
            parts += _lines(points, look, color)
            y = _TOP + 20 + 44 * i + 20 * j
            parts.append(f'<path d="M{_VARIANTS.right + 16} {y - 4}h26" {look}/>')
            parts.append(f'<text x="{_VARIANTS.right + 50}" y="{y}">{name}, {feature}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _lines(points: Sequence[Sequence[float]], look: str, color: str) -> Iterator[str]:
    """Yields, in each panel, a line through the points at the largest number of what the other panel shows."""
    models, variants = (max(point[i] for point in points) for i in (0, 1))
    by_models = [_MODELS.place(n, lines) for n, m, lines in points if m == variants]
    by_variants = [_VARIANTS.place(m, lines) for n, m, lines in points if n == models]
    for some in (sorted(by_models), sorted(by_variants)):
        yield f'<polyline points="{" ".join(f"{x},{y}" for x, y in some)}" {look}/>'
        yield from (f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>' for x, y in some)


def _axes() -> Iterator[str]:
    for panel in (_MODELS, _VARIANTS):
        for decade in range(_LINES + 1):
            _, y = panel.place(1, 10.0**decade)
            yield f'<path d="M{panel.left} {y}H{panel.right}" stroke="#ddd"/>'
        for decade in range(panel.decades + 1):
            x, _ = panel.place(10.0**decade, 1)
            yield f'<path d="M{x} {_TOP}V{_BOTTOM}" stroke="#ddd"/>'
            yield f'<text x="{x}" y="{_BOTTOM + 18}" text-anchor="middle">{10**decade:,}</text>'
        middle = (panel.left + panel.right) / 2
        yield f'<text x="{middle}" y="{_BOTTOM + 40}" text-anchor="middle">{panel.label}</text>'
    for decade in range(_LINES + 1):
        _, y = _MODELS.place(1, 10.0**decade)
        yield f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{10**decade:,}</text>'
    yield f'<text x="{_LEFT - 8}" y="{_TOP - 14}">lines of code</text>'
