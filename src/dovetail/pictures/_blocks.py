# SPDX-License-Identifier: Apache-2.0
"""A model as blocks: what it is made of, from first to last; each kind of layer once, with its branches."""

from collections.abc import Sequence
from typing import NamedTuple

from ._canvas import SMALL, Canvas, Color
from ._curves import WIDTH
from ._picture import Picture
from ._text import TIMES, width_of

_X, _GAP = 20, 16  # Where all begins; between two things.
_HEAD, _ROW, _PILL = 24, 17, 20  # Heights: of the head of a card, a row, a norm.
_STREAM = 34  # From the left of a layer to its branches.
_WIDEST = 430  # Of a layer.
_NARROWEST = 220
_KINDS: tuple[Color, ...] = (2, 3, 4, 5, 0, 1)
_BRANCHES: tuple[Color, ...] = (0, 1, 2, 3)


class Row(NamedTuple):
    """A part without parts."""

    name: str
    shape: str
    params: str = ""


class Card(NamedTuple):
    """A part with parts. `many`: it stands for several that are alike, as experts are."""

    name: str
    kind: str
    params: str = ""
    rows: "Sequence[Row | Card]" = ()
    many: bool = False


class BlockBranch(NamedTuple):
    """What is added to the stream of a layer, or joins it in another way."""

    card: Card
    before: Sequence[str] = ()  # Norms.
    after: Sequence[str] = ()
    joined: str = ""  # How, if it is not added.


class BlockLayer(NamedTuple):
    """A kind of layer of a stack."""

    kind: str
    params: str  # Parameters of one.
    branches: Sequence[BlockBranch]
    parallel: bool = False  # All branches read the same stream.
    plain: bool = False  # Nothing is known of a stream: what it is made of is no branch.


class Stack(NamedTuple):
    """Layers in their order: the numbers of their kinds."""

    name: str
    params: str
    order: Sequence[int]
    kinds: Sequence[BlockLayer]


class Section(NamedTuple):
    """The beginning of a part of a model that has stacks of its own."""

    name: str
    kind: str
    params: str


def blocks_picture(title: str, about: str, items: "Sequence[Card | Stack | Section]") -> Picture:
    """Returns a picture of a model, from what it begins with down to what it ends with."""
    canvas = Canvas(WIDTH, f"{title}, as blocks")
    canvas.text(_X, 26, title, bold=True, size=14, room=WIDTH - 2 * _X)
    canvas.text(_X, 45, about, "dim", room=WIDTH - 2 * _X)
    y, middle = 62.0, WIDTH / 2
    for i, item in enumerate(items):
        if i and not isinstance(item, Section):
            if not isinstance(items[i - 1], Section):
                _arrow_down(canvas, middle, y, y + _GAP)
            y += _GAP
        if isinstance(item, Section):
            y += _GAP
            canvas.line(_X, y, WIDTH - _X, y, "edge", dash="3 3")
            _draw_head(canvas, _X, y + 4, WIDTH - 2 * _X, Card(*item))
            y += _HEAD
        elif isinstance(item, Stack):
            y = _draw_stack(canvas, y, item)
        else:
            wide = min(_WIDEST, WIDTH - 2 * _X)
            y = _draw_card(canvas, (WIDTH - wide) / 2, y, wide, item)
    return canvas.picture(y + 18)


def _draw_stack(canvas: Canvas, y: float, stack: Stack) -> float:
    """Draws a frame with each kind of layer of a stack in it; returns where it ends."""
    left, width = _X, WIDTH - 2 * _X
    columns = min(len(stack.kinds), max(1, int((width - _GAP) // (_NARROWEST + _GAP))), 3)
    wide = min(_WIDEST, (width - _GAP * (columns + 1)) / columns)
    inner = columns * wide + (columns - 1) * _GAP
    start = left + (width - inner) / 2
    several = len(stack.kinds) > 1
    top = y + _HEAD + 6 + (24 if several else 0)
    rows = [stack.kinds[i : i + columns] for i in range(0, len(stack.kinds), columns)]
    heights = [max(_layer_height(layer) for layer in row) for row in rows]
    bottom = top + sum(heights) + _GAP * (len(rows) - 1) + 12
    canvas.rect(left, y, width, bottom - y, None, edge="edge", radius=8)
    layers = f"{TIMES}{len(stack.order)}" if len(stack.order) > 1 else ""
    _draw_head(canvas, left + 4, y + 2, width - 8, Card(stack.name, layers, stack.params))
    if several:
        _draw_order(canvas, left + 14, y + _HEAD + 6, width - 28, stack)
    at = top
    for r, (row, high) in enumerate(zip(rows, heights, strict=True)):
        for c, layer in enumerate(row):
            number = r * columns + c
            times = sum(kind == number for kind in stack.order)
            color = _KINDS[number % len(_KINDS)] if several else "edge"
            _draw_layer(canvas, start + c * (wide + _GAP), at, wide, layer, times, color)
        at += high + _GAP
    return bottom


def _draw_order(canvas: Canvas, x: float, y: float, width: float, stack: Stack) -> None:
    """Draws a cell for each layer of a stack, in their order, in the colour of its kind."""
    cell = min(14.0, width / len(stack.order))
    for i, kind in enumerate(stack.order):
        gap = 2 if cell > 5 else 0
        canvas.rect(x + i * cell, y, cell - gap, 12, _KINDS[kind % len(_KINDS)], radius=2 if gap else 0)


def _draw_layer(canvas: Canvas, x: float, y: float, width: float, layer: BlockLayer, times: int, color: Color) -> None:
    """Draws one layer: the stream that goes through it, and what joins it."""
    if color != "edge":
        canvas.rect(x, y + 7, 12, 12, color, radius=2)
    head = x + (18 if color != "edge" else 4)
    title = f"{layer.kind}  {TIMES}{times}" if times > 1 else layer.kind
    count = f"{layer.params} each" if times > 1 and layer.params else layer.params
    room = width - (head - x) - width_of(count, SMALL) - 10
    canvas.text(head, y + 17, title, bold=True, room=room)
    canvas.text(x + width - 4, y + 17, count, "dim", anchor="end", size=SMALL)
    y += _HEAD + 4
    if layer.plain:
        for branch in layer.branches:
            y = _draw_card(canvas, x, y, width, branch.card) + 8
        return
    stream, top = x + 12, y
    bottom = y + sum(_branch_height(branch) + 8 for branch in layer.branches) + 10
    canvas.line(stream, top - 4, stream, bottom, color, width=2.5)
    _tip(canvas, stream, bottom + 1, color)
    y += 6
    beside, last = x + 23, y  # Where what all branches read goes down, if they are parallel.
    for i, branch in enumerate(layer.branches):
        entry = y + (_PILL if branch.before else _HEAD) / 2
        if layer.parallel and i:
            canvas.path([(beside, last), (beside, entry), (x + _STREAM, entry)], "edge")
        else:
            canvas.line(stream, entry, x + _STREAM, entry, "edge", width=1.5)
            canvas.circle(stream, entry, 2.5, color)
        last = entry
        y = _draw_branch(canvas, x, y, width, branch, stream, _BRANCHES[i % len(_BRANCHES)]) + 8


def _draw_branch(
    canvas: Canvas, x: float, y: float, width: float, branch: BlockBranch, stream: float, color: Color
) -> float:
    """Draws norms and what is between them, and how it joins the stream; returns where it ends."""
    left, wide = x + _STREAM, width - _STREAM
    for norm in branch.before:
        y = _draw_pill(canvas, left, y, wide, norm) + 5
    y = _draw_card(canvas, left, y, wide, branch.card, accent=color)
    for norm in branch.after:
        y = _draw_pill(canvas, left, y + 5, wide, norm)
    at = y - 10
    canvas.line(left, at, stream + 8, at, "edge", width=1.5)
    canvas.circle(stream, at, 7, "ground", edge="ink")
    canvas.line(stream - 3.5, at, stream + 3.5, at, "ink", width=1.2)
    canvas.line(stream, at - 3.5, stream, at + 3.5, "ink", width=1.2)
    if branch.joined:
        canvas.text(left + 2, y + 12, f"joins by {branch.joined}", "dim", size=SMALL, room=wide)
        y += 16
    return y


def _draw_pill(canvas: Canvas, x: float, y: float, width: float, text: str) -> float:
    canvas.rect(x, y, width, _PILL, "ground", edge="edge", radius=_PILL / 2)
    canvas.text(x + width / 2, y + 14, text, "dim", anchor="middle", size=SMALL, room=width - 16)
    return y + _PILL


def _draw_card(canvas: Canvas, x: float, y: float, width: float, card: Card, accent: Color = "edge") -> float:
    """Draws a part with what is in it; returns where it ends."""
    high = _card_height(card) - (6 if card.many else 0)
    if card.many:
        for shift in (6, 3):
            canvas.rect(x + shift, y + shift, width - 6, high, "panel", edge="edge", radius=4)
        width -= 6
    canvas.rect(x, y, width, high, "panel", edge="edge", radius=4)
    canvas.rect(x, y, 4, high, accent, radius=2)
    _draw_head(canvas, x + 4, y, width - 4, card)
    _draw_rows(canvas, x + 12, y + _HEAD, width - 20, card.rows)
    return y + high + (6 if card.many else 0)


def _draw_rows(canvas: Canvas, x: float, y: float, width: float, rows: "Sequence[Row | Card]") -> float:
    for row in rows:
        if isinstance(row, Card):
            _draw_line(canvas, x, y + 12, width, row.name, row.kind, row.params)
            canvas.line(x + 3, y + _ROW, x + 3, y + _row_height(row) - 5, "edge")
            _draw_rows(canvas, x + 12, y + _ROW, width - 12, row.rows)
        else:
            _draw_line(canvas, x, y + 12, width, row.name, row.shape, row.params)
        y += _row_height(row)
    return y


def _draw_line(canvas: Canvas, x: float, y: float, width: float, name: str, shape: str, count: str) -> None:
    """Writes a name at the left, a number at the right, and between them what there is room for."""
    canvas.text(x + width, y, count, "dim", anchor="end", size=SMALL)
    right = x + width - 50
    named = min(width_of(name, SMALL), width * 0.6)
    canvas.text(x, y, name, size=SMALL, room=named + 1)
    canvas.text(right, y, shape, "dim", anchor="end", size=SMALL, room=max(right - x - named - 8, 0))


def _draw_head(canvas: Canvas, x: float, y: float, width: float, card: Card) -> None:
    count = width_of(card.params, SMALL)
    room = width - count - 24
    canvas.text(x + 8, y + 16, card.name, bold=True, room=room)
    used = min(width_of(card.name) * 1.1, room)
    if room - used > 24:
        canvas.text(x + 16 + used, y + 16, card.kind, "dim", room=room - used - 8)
    canvas.text(x + width - 8, y + 16, card.params, "dim", anchor="end", size=SMALL)


def _row_height(row: "Row | Card") -> float:
    return _ROW + (sum(map(_row_height, row.rows)) if isinstance(row, Card) else 0)


def _card_height(card: Card) -> float:
    return _HEAD + sum(map(_row_height, card.rows)) + (6 if card.rows else 0) + (6 if card.many else 0)


def _branch_height(branch: BlockBranch) -> float:
    pills = (len(branch.before) + len(branch.after)) * (_PILL + 5)
    return pills + _card_height(branch.card) + (16 if branch.joined else 0)


def _layer_height(layer: BlockLayer) -> float:
    return _HEAD + 10 + sum(_branch_height(branch) + 8 for branch in layer.branches) + 12


def _arrow_down(canvas: Canvas, x: float, top: float, bottom: float) -> None:
    canvas.line(x, top + 1, x, bottom - 4, "edge", width=1.5)
    _tip(canvas, x, bottom, "edge")


def _tip(canvas: Canvas, x: float, y: float, color: Color) -> None:
    canvas.area([(x - 4.5, y - 6), (x + 4.5, y - 6), (x, y)], color)
