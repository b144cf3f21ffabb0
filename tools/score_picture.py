# SPDX-License-Identifier: Apache-2.0
"""Draws predicted against measured steps, on logarithmic axes.

`dovetail predict --score TABLE.csv --json > score.json`, then
`python tools/score_picture.py score.json docs/foresight.svg`.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DECADE, LEFT, TOP, RIGHT = 130, 60, 24, 150
FIRST, LAST = -0.6, 2.4  # Powers of 10 of seconds.
SIDE = round((LAST - FIRST) * DECADE)
COLORS = {"dense": "#0072b2", "MoE": "#d55e00", "hybrid": "#009e73"}  # Told apart by the colour-blind.


def place(measured: float, predicted: float) -> tuple[float, float]:
    """Returns where a step is in the picture."""
    across, up = ((math.log10(seconds) - FIRST) * DECADE for seconds in (measured, predicted))
    return round(LEFT + across, 1), round(TOP + SIDE - up, 1)


def axes() -> Iterator[str]:
    """Yields the grid, its labels, and the lines of no error and of a fifth more or less."""
    for seconds in (0.3, 0.5, 1, 2, 5, 10, 20, 50, 100, 200):
        x, y = place(seconds, seconds)
        yield f'<path d="M{x} {TOP}V{TOP + SIDE}M{LEFT} {y}H{LEFT + SIDE}" stroke="#e4e4e4"/>'
        yield f'<text x="{x}" y="{TOP + SIDE + 18}" text-anchor="middle">{seconds}</text>'
        yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{seconds}</text>'
    for factor, look in ((1.0, "#444"), (1.2, "#aaa"), (1 / 1.2, "#aaa")):
        low, high = 10**FIRST * max(1, 1 / factor), 10**LAST / max(1, factor)
        (x1, y1), (x2, y2) = place(low, low * factor), place(high, high * factor)
        yield f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{look}"/>'
    middle = LEFT + SIDE / 2
    yield f'<text x="{middle}" y="{TOP + SIDE + 38}" text-anchor="middle">measured, seconds</text>'
    turned = f'transform="rotate(-90 16 {TOP + SIDE / 2})"'
    yield f'<text x="16" y="{TOP + SIDE / 2}" text-anchor="middle" {turned}>predicted, seconds</text>'


def picture(rows: list[dict[str, Any]]) -> str:
    """Returns the picture, as SVG."""
    width, height = LEFT + SIDE + RIGHT, TOP + SIDE + 52
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *axes(),
    ]
    for row in rows:
        x, y = place(row["measured_seconds"], row["predicted_seconds"])
        parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{COLORS[row["kind"]]}" fill-opacity="0.6"/>')
    for i, (kind, color) in enumerate(COLORS.items()):
        count = sum(row["kind"] == kind for row in rows)
        x, y = LEFT + SIDE + 20, TOP + 20 + 22 * i
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{color}"/>')
        parts.append(f'<text x="{x + 12}" y="{y}">{kind}, {count} rows</text>')
    parts.append(f'<text x="{LEFT + SIDE + 20}" y="{TOP + 90}" fill="#777">grey: 20 % off</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Reads a score, and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("score", help="what `dovetail predict --score TABLE.csv --json` printed")
    parser.add_argument("picture", help="the SVG file to write")
    args = parser.parse_args()
    rows = json.loads(Path(args.score).read_text("utf-8"))["rows"]
    Path(args.picture).write_text(picture([row for row in rows if "error" in row]), "utf-8")


if __name__ == "__main__":
    main()
