# SPDX-License-Identifier: Apache-2.0
"""Pictures of what compilers and predictions say of a step: its memory, its time, and in which order that passes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dovetail.pictures import (
    SMALL,
    TIMES,
    WIDTH,
    Bar,
    Canvas,
    Color,
    Entry,
    Part,
    Picture,
    draw_bar,
    draw_bars,
    draw_legend,
)
from dovetail.pictures import number as short

from ._timeline import Passage

if TYPE_CHECKING:
    from ._predict import Prediction
    from ._report import Report

_X = 20  # Where all begins.
_WIDE = WIDTH - 2 * _X
_MEMORY: dict[str, Color] = {"parameters": 0, "optimizer": 1, "activations": 2, "temporaries": 4, "other": "edge"}
_TIME: dict[str, Color] = {"products": 0, "attention": 3, "memory traffic": 2, "optimizer": 4}
_COMPUTE, _WAITING, _BESIDE = 0, 1, 2
_PATHS = 12  # Rows.
_EXPOSED = "exposed, "


def compile_picture(name: str, report: "Report") -> Picture:
    """Returns a picture of the memory of a compiled step, by kind and by part of the model; and of its time."""
    canvas = Canvas(WIDTH, f"memory of {_on(name, report.hardware)}")
    limit, total = report.hbm_limit_gib, report.hbm_per_chip_gib
    verdict = "fits" if report.fits else "does not fit"
    canvas.text(_X, 26, f"{_on(name, report.hardware)}: {verdict}", bold=True, size=14, room=_WIDE)
    mesh = ", ".join(f"{axis}={size}" for axis, size in report.mesh.items()) or "one device"
    chips = "1 chip" if report.chips == 1 else f"{report.chips:,} chips"
    parts = "" if report.num_microbatches == 1 else f", {report.num_microbatches} microbatches"
    canvas.text(_X, 45, f"{chips}, mesh {mesh}, remat {report.remat}{parts}", "dim", room=_WIDE)
    of = "" if limit is None else f" of {_gib(limit)}"
    canvas.text(_X, 76, f"memory of a chip: {_gib(total)}{of}", bold=True)
    y = _draw_memory(canvas, 86, report)
    kinds = [Entry(kind, color) for kind, color in _MEMORY.items() if report.hbm.get(kind, 0) > 0]
    y = draw_legend(canvas, _X, y + 8, _WIDE, kinds) + 12
    y = draw_bars(canvas, _X, y, _WIDE, _paths(report))
    if report.timeline:
        y = _draw_timeline(canvas, y + 26, report.timeline)
    return canvas.picture(y + 10)


def _on(name: str, hardware: str) -> str:
    return f"{name} on {hardware}" if name else f"on {hardware}"


def _draw_memory(canvas: Canvas, y: float, report: "Report") -> float:
    """Draws all that a chip holds in the frame of what it can hold; returns where that ends."""
    limit, total = report.hbm_limit_gib, report.hbm_per_chip_gib
    most = max(limit or 0.0, total) or 1.0
    parts = [Part(_MEMORY[kind], gib, f"{kind}: {_gib(gib)}") for kind, gib in report.hbm.items() if kind in _MEMORY]
    if limit is not None:
        canvas.rect(_X, y, _WIDE * limit / most, 22, "panel", edge="edge")
    draw_bar(canvas, _X, y + 3, _WIDE, parts, most, high=16)
    if limit is not None and total > limit:
        at = _X + _WIDE * limit / most
        canvas.line(at, y - 5, at, y + 27, "ink", width=2)
        canvas.text(at - 4, y + 38, f"a chip has {_gib(limit)}", anchor="end", size=SMALL)
        return y + 42
    return y + 26


def _paths(report: "Report") -> list[Bar]:
    """Returns a bar for each part of the model that has much, and one for all others."""
    shown = list(report.hbm_by_path.items())
    rest: dict[str, float] = {}
    for _, kinds in shown[_PATHS:]:
        for kind, gib in kinds.items():
            rest[kind] = rest.get(kind, 0.0) + gib
    rows = [*shown[:_PATHS], *([(f"{len(shown) - _PATHS} more", rest)] if rest else [])]
    return [_memory_bar(path, kinds) for path, kinds in rows]


def _memory_bar(path: str, kinds: Mapping[str, float]) -> Bar:
    parts = [
        Part(_MEMORY[kind], kinds[kind], f"{path}, {kind}: {_gib(kinds[kind])}") for kind in _MEMORY if kind in kinds
    ]
    return Bar(path, parts, _gib(sum(kinds.values())))


def prediction_picture(name: str, found: "Prediction") -> Picture:
    """Returns a picture of the time of a predicted step: what it goes to, where, and in which order it passes."""
    canvas = Canvas(WIDTH, f"time of a step of {_on(name, found.hardware)}")
    low, high = found.interval
    head = f"{_on(name, found.hardware)}: a step takes {_seconds(found.step_seconds)}"
    canvas.text(_X, 26, head, bold=True, size=14, room=_WIDE)
    rate = f"{short(found.units_per_second_per_chip)} {found.unit}s/s per chip"
    about = f"{_seconds(low)} to {_seconds(high)}, MFU {100 * found.mfu:.0f} %, {rate}, by its {found.method} program"
    canvas.text(_X, 45, about, "dim", room=_WIDE)
    parts = sorted(found.breakdown.items(), key=lambda item: -item[1])
    most, y = max(high, found.step_seconds), 62
    colors = _colors([part for part, _ in parts])
    whole = [Part(colors[part], seconds, f"{part}: {_seconds(seconds)}") for part, seconds in parts]
    end = draw_bar(canvas, _X, y, _WIDE, whole, most, high=20)
    _draw_interval(canvas, _X + _WIDE * low / most, _X + _WIDE * high / most, end, y + 29)
    y = _draw_rows(canvas, y + 54, "what it goes to", [(part, part, s) for part, s in parts], colors, found)
    if found.by_path:
        paths = list(found.by_path.items())
        rows = [("", path, seconds) for path, seconds in paths[:_PATHS]]
        if paths[_PATHS:]:
            rows.append(("", f"{len(paths) - _PATHS} more", sum(seconds for _, seconds in paths[_PATHS:])))
        y = _draw_rows(canvas, y + 24, "where", rows, {"": "dim"}, found)
    if found.timeline:
        y = _draw_timeline(canvas, y + 24, found.timeline)
    return canvas.picture(y + 10)


def _draw_interval(canvas: Canvas, low: float, high: float, at: float, y: float) -> None:
    """Draws where 8 of 10 steps would end."""
    canvas.line(low, y, high, y, "dim", width=1.5)
    for x in (low, high):
        canvas.line(x, y - 4, x, y + 4, "dim", width=1.5)
    canvas.circle(min(at, high), y, 3, "ink")
    canvas.text(low - 8, y + 4, "8 of 10 steps would end here", "dim", anchor="end", size=SMALL)


def _draw_rows(
    canvas: Canvas,
    y: float,
    title: str,
    rows: Sequence[tuple[str, str, float]],
    colors: Mapping[str, Color],
    found: "Prediction",
) -> float:
    """Draws rows of kind, name and seconds, below a title; returns where they end."""
    canvas.text(_X, y, title, bold=True)
    bars = [
        Bar(name, [Part(colors[kind], s)], f"{_seconds(s)}, {100 * s / found.step_seconds:.1f} %")
        for kind, name, s in rows
    ]
    return draw_bars(canvas, _X, y + 10, _WIDE, bars)


def _colors(parts: Sequence[str]) -> dict[str, Color]:
    """Returns a colour for each part of a step; waiting for others is of one colour."""
    return {part: _WAITING if part.startswith(_EXPOSED) else _TIME.get(part, "edge") for part in parts}


def _draw_timeline(canvas: Canvas, y: float, passages: Sequence[Passage]) -> float:
    """Draws a step from its start to its end; returns where that ends."""
    total = sum(each.compute + each.waiting for each in passages)
    canvas.text(_X, y, f"a step in its order, by the compiler's schedule: {_seconds(total)}", bold=True)
    left, lanes = _X + 78, (y + 26, y + 50)
    width = _X + _WIDE - left
    for label, top in zip(("computes", "sends"), lanes, strict=True):
        canvas.text(left - 8, top + 13, label, "dim", anchor="end", size=SMALL)
        canvas.rect(left, top, width, 18, "panel")
    x, free = left, left
    for each in passages:
        compute, waiting, beside = (s / total * width for s in (each.compute, each.waiting, each.beside))
        hint = f"{_place(each)}: computes {_seconds(each.compute)}, waits {_seconds(each.waiting)}"
        canvas.rect(x, lanes[0], compute - 1, 18, _COMPUTE, hint=hint)
        if beside >= 0.5:
            sent = f"{_place(each)}: sent beside other work, {_seconds(each.beside)}"
            canvas.rect(x, lanes[1], min(beside, compute), 18, _BESIDE, hint=sent)
        if waiting >= 0.5:
            canvas.rect(x + compute, lanes[1], waiting - 1, 18, _WAITING, hint=f"waited for: {_seconds(each.waiting)}")
        label = _place(each)
        if x >= free and compute + waiting >= 48:
            canvas.text(x, lanes[0] - 6, label, "dim", size=SMALL, room=compute + waiting - 4, middle=True)
            free = x + min(compute + waiting, 48)
        canvas.line(x, lanes[0] - 3, x, lanes[1] + 18, "edge")
        x += compute + waiting
    kinds = [
        Entry("computes", _COMPUTE),
        Entry("sent beside other work", _BESIDE),
        Entry("waits for what is sent", _WAITING),
    ]
    return draw_legend(canvas, left, lanes[1] + 26, width, kinds)


def _place(each: Passage) -> str:
    where = each.path.removeprefix("model.")
    return f"{where}{f' {TIMES}{each.runs}' if each.runs > 1 else ''}{', backward' if each.backward else ''}"


def _gib(value: float) -> str:
    return f"{value:,.1f} GiB" if value >= 1 else f"{value * 1024:,.1f} MiB" if value >= 1e-4 else "0"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
