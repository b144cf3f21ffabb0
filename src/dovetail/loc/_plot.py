# SPDX-License-Identifier: Apache-2.0
"""The plot of growth: lines against models times variants, both in powers of ten, as SVG."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 400, 70, 30
_PLOT_WIDTH, _PLOT_HEIGHT = 420, 310
_DECADES = 3  # Of both axes: 1 to 1000.
_COLORS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#cc79a7")  # Told apart by the colour-blind.


def plot(series: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Returns a plot of series, each of points (models, variants, lines), with a legend."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *_axes(),
    ]
    for i, ((name, points), color) in enumerate(zip(series.items(), _COLORS, strict=False)):
        parts += _series(points, color)
        y = _TOP + 20 + 22 * i
        parts.append(f'<circle cx="{_LEFT + _PLOT_WIDTH + 18}" cy="{y - 4}" r="4" fill="{color}"/>')
        parts.append(f'<text x="{_LEFT + _PLOT_WIDTH + 28}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def growth_plot(record: Mapping[str, Any]) -> str:
    """Returns the plot of the JSON that `dovetail loc growth` prints, for the features that all designs have."""
    designs = {"dovetail": record["features"], **record["designs"]}
    return plot(
        {
            f"{design}, {feature}": designs[design][feature]["points"]
            for design in designs
            for feature in ("rope", "moe")
        }
    )


def _axes() -> Iterator[str]:
    for decade in range(_DECADES + 1):
        x, y = _place(10.0**decade, 10.0**decade)
        yield f'<path d="M{x} {_TOP}V{_TOP + _PLOT_HEIGHT}M{_LEFT} {y}H{_LEFT + _PLOT_WIDTH}" stroke="#ddd"/>'
        yield f'<text x="{x}" y="{_TOP + _PLOT_HEIGHT + 18}" text-anchor="middle">{10**decade:,}</text>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{10**decade:,}</text>'
    middle = _TOP + _PLOT_HEIGHT / 2
    yield f'<text x="{_LEFT + _PLOT_WIDTH / 2}" y="{_HEIGHT - 16}" text-anchor="middle">models x variants</text>'
    yield f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">lines of code</text>'


def _series(points: Sequence[Sequence[float]], color: str) -> Iterator[str]:
    for models, variants, lines in points:
        x, y = _place(models * variants, lines)
        yield f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}" fill-opacity="0.6"/>'


def _place(x: float, y: float) -> tuple[float, float]:
    across, up = (math.log10(value) / _DECADES for value in (x, y))
    return round(_LEFT + across * _PLOT_WIDTH, 1), round(_TOP + (1 - up) * _PLOT_HEIGHT, 1)
