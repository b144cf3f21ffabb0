# SPDX-License-Identifier: Apache-2.0
"""Draws predicted against measured steps, on logarithmic axes.

`dovetail predict --score TABLE.csv --json > score.json`, then
`python tools/score_picture.py score.json docs/foresight.svg`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from dovetail.pictures import SMALL, Canvas, Entry, Picture, Scale, draw_legend

LEFT, TOP, SIDE, RIGHT = 70, 24, 390, 190
FIRST, LAST = 0.25, 250.0  # Seconds.
TICKS = (0.3, 1, 3, 10, 30, 100)
KINDS = ("dense", "MoE", "hybrid")


def draw_axes(canvas: Canvas, across: Scale, up: Scale) -> None:
    """Draws the grid, its labels, and the lines of no error and of a fifth more or less."""
    for seconds in TICKS:
        x, y = across.place(seconds), up.place(seconds)
        canvas.line(x, TOP, x, TOP + SIDE)
        canvas.line(LEFT, y, LEFT + SIDE, y)
        canvas.text(x, TOP + SIDE + 18, f"{seconds:g}", "dim", anchor="middle", size=SMALL)
        canvas.text(LEFT - 8, y + 4, f"{seconds:g}", "dim", anchor="end", size=SMALL)
    for factor in (1.2, 1 / 1.2, 1.0):
        low, high = FIRST * max(1, 1 / factor), LAST / max(1, factor)
        ends = [(across.place(each), up.place(each * factor)) for each in (low, high)]
        canvas.path(ends, "dim" if factor == 1.0 else "edge", width=1)
    canvas.text(LEFT + SIDE / 2, TOP + SIDE + 38, "measured, seconds", "dim", anchor="middle")
    canvas.text(20, TOP + SIDE / 2, "predicted, seconds", "dim", anchor="middle", turned=True)


def picture(rows: list[dict[str, Any]]) -> Picture:
    """Returns the picture."""
    canvas = Canvas(LEFT + SIDE + RIGHT, "predicted against published seconds of a step")
    across = Scale(FIRST, LAST, LEFT, LEFT + SIDE, log=True)
    up = Scale(FIRST, LAST, TOP + SIDE, TOP, log=True)
    draw_axes(canvas, across, up)
    for row in rows:
        x, y = across.place(row["measured_seconds"]), up.place(row["predicted_seconds"])
        canvas.circle(x, y, 3, KINDS.index(row["kind"]), opacity=0.6)
    counts = {kind: sum(row["kind"] == kind for row in rows) for kind in KINDS}
    entries = [Entry(f"{kind}, {counts[kind]} rows", i) for i, kind in enumerate(KINDS)]
    y = draw_legend(canvas, LEFT + SIDE + 20, TOP, RIGHT - 24, entries)
    canvas.text(LEFT + SIDE + 20, y + 20, "grey lines: 20 % off", "dim", size=SMALL)
    return canvas.picture(TOP + SIDE + 52)


def main() -> None:
    """Reads a score, and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("score", help="what `dovetail predict --score TABLE.csv --json` printed")
    parser.add_argument("picture", help="the .svg or .png to write")
    args = parser.parse_args()
    rows = json.loads(Path(args.score).read_text("utf-8"))["rows"]
    picture([row for row in rows if "error" in row]).save(args.picture)


if __name__ == "__main__":
    main()
