# SPDX-License-Identifier: Apache-2.0
"""Legends: what the colours mean, below a picture, in as many columns as there is room for."""

from collections.abc import Sequence
from typing import NamedTuple

from ._canvas import DASHES, NUM_COLORS, SIZE, Canvas, Color
from ._text import width_of

_LINE, _KEY, _GAP = 19, 24, 18  # Pixels: of a line, of what stands before a name, between columns.
_LEAST, _ENOUGH = 120, 220
_MANY = 5  # Entries: more share lines, and long names are shortened.


class Entry(NamedTuple):
    """A line of a legend."""

    name: str
    color: Color
    dash: str | None = None  # Of a line; None: an area.
    note: str = ""  # Behind the name.


def line_look(index: int) -> tuple[int, str]:
    """Returns colour and dashes of the line with a number: no two of the first 24 look the same."""
    return index % NUM_COLORS, DASHES[index // NUM_COLORS % len(DASHES)]


def draw_legend(canvas: Canvas, x: float, y: float, width: float, entries: Sequence[Entry]) -> float:
    """Draws a legend from `y` down; returns where it ends."""
    if not entries:
        return y
    texts = [f"{each.name}  {each.note}" if each.note else each.name for each in entries]
    widest = max(width_of(text) for text in texts) + _KEY + _GAP
    widest = min(widest, max((width + _GAP) / 2, _ENOUGH)) if len(entries) > _MANY else widest
    columns = max(1, min(len(entries), int((width + _GAP) // max(widest, _LEAST))))
    column = width / columns if columns > 1 else width
    column = min(column, max(widest, _LEAST))
    for i, each in enumerate(entries):
        left, top = x + i % columns * column, y + i // columns * _LINE + 13
        if each.dash is None:
            canvas.rect(left, top - 9, 14, 10, each.color, radius=2)
        else:
            canvas.line(left, top - 4, left + 18, top - 4, each.color, width=2.5, dash=each.dash)
        note = width_of(each.note) + 8 if each.note else 0
        room = column - _KEY - _GAP / 2 - note
        canvas.text(left + _KEY, top, each.name, room=room, middle=True)
        if each.note:
            at = left + _KEY + min(room, width_of(each.name)) + 8
            canvas.text(at, top, each.note, "dim", size=SIZE)
    return y + -(-len(entries) // columns) * _LINE
