# SPDX-License-Identifier: Apache-2.0
"""Bars: a whole in its parts, and rows of such bars, each with its name and its number."""

from collections.abc import Sequence
from typing import NamedTuple

from ._canvas import SMALL, Canvas, Color
from ._text import width_of

_HIGH, _ROW = 14, 22  # Pixels: of a bar, from one to the next.
_SEEN = 0.5  # Pixels: what is narrower is not drawn.


class Part(NamedTuple):
    """A part of a bar."""

    color: Color
    value: float
    hint: str = ""


class Bar(NamedTuple):
    """A row."""

    name: str
    parts: Sequence[Part]
    note: str = ""  # Behind the bar.

    @property
    def value(self) -> float:
        """All of it."""
        return sum(part.value for part in self.parts)


def draw_bar(
    canvas: Canvas, x: float, y: float, width: float, parts: Sequence[Part], most: float, *, high: float = _HIGH
) -> float:
    """Draws parts one behind the other, `width` pixels being `most`; returns where they end."""
    for part in parts:
        wide = part.value / most * width if most > 0 else 0.0
        if wide >= _SEEN:
            canvas.rect(x, y, wide - (1 if wide > 3 else 0), high, part.color, hint=part.hint)
        x += wide
    return x


def draw_bars(
    canvas: Canvas, x: float, y: float, width: float, bars: Sequence[Bar], *, names: float = 230, most: float = 0.0
) -> float:
    """Draws rows of bars that begin at one line; returns where the last one ends.

    Args:
        names: pixels of their names, at most.
        most: what the longest bar could be; by default the longest there is.
    """
    if not bars:
        return y
    most = most or max(bar.value for bar in bars) or 1.0
    names = min(names, max(width_of(bar.name, SMALL) for bar in bars) + 4)
    notes = max(width_of(bar.note, SMALL) for bar in bars) + 8
    room = width - names - 8 - notes
    for i, bar in enumerate(bars):
        top = y + i * _ROW
        canvas.text(x + names, top + 11, bar.name, anchor="end", size=SMALL, room=names, middle=True)
        end = draw_bar(canvas, x + names + 8, top, room, bar.parts, most)
        canvas.text(min(end + 6, x + width - notes + 8), top + 11, bar.note, "dim", size=SMALL)
    return y + len(bars) * _ROW
