# SPDX-License-Identifier: Apache-2.0
"""Weak and strong scaling to 100,000 chips, on paper: `python tools/scaling.py` prints a table and draws a picture.

For each number of chips the best mesh is searched for, as `dovetail plan` does. Many TPUs are slices, which the network
joins. Chips fail as published; steps wait while the state is copied to the memory of the hosts, and after a stop a run
goes on from the memory of other hosts in a minute, or from storage in five.
"""

import argparse
import functools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dovetail.hardware import Hardware, hardware
from dovetail.pictures import SMALL, Canvas, Entry, Picture, Scale, draw_legend
from dovetail.plan import FAILURES, goodput, on_hardware, policies_for, search
from dovetail.train import Trainer, size_of
from dovetail.zoo import recipe

SIZES = tuple(2**n for n in range(6, 18))  # Chips.
KINDS = ("tpu-v5p", "gpu-h100")
LARGEST_SLICE = 4096  # Chips of a TPU slice here: a power of two.
ROWS_PER_CHIP = 2  # Of 4,096 tokens: weak scaling.
ROWS = 4096  # 16.8M tokens: strong scaling, a batch as Llama 3 405B had.
HOST_BANDWIDTH = 16e9  # Bytes/s at which a chip copies its state to its host: an assumption.
RECOVERY = {"memory": 60.0, "storage": 300.0}  # Seconds from a stop until steps are made again.
LEAST_WAIT = 1.0  # Seconds that steps wait for a checkpoint at least.
BYTES_PER_TOKEN = 4  # Of the input.


class Point(NamedTuple):
    """A number of chips."""

    chips: int
    hardware: str
    mesh: str
    remat: str
    microbatches: int
    seconds: float
    mfu: float
    memory: float  # Goodput if a run goes on from the memory of other hosts,
    storage: float  # or from storage.
    input_gigabytes: float  # A second, of all hosts.


def named(chip: str, chips: int) -> Hardware:
    """Returns so many chips, in slices where one cannot have them all."""
    if chip.startswith("gpu"):
        return hardware(f"{chip}-{chips}")
    slices = max(1, chips // LARGEST_SLICE)
    unit = 2 if chip == "tpu-v5p" else 1
    return hardware(f"{chip}-{chips // slices * unit}" + (f"x{slices}" if slices > 1 else ""))


def points(name: str, chip: str, sizes: Sequence[int], rows: int | None) -> Iterator[Point]:
    """Yields the best run on each number of chips; with a fixed number of rows, or with as many for each chip."""
    for chips in sizes:
        cfg, hw = recipe(name), named(chip, chips)
        cfg = cfg.set(input=cfg.input.set(batch_size=rows or ROWS_PER_CHIP * chips))
        found = search(on_hardware(cfg, hw.name), hw, policies=policies_for(cfg, hw))
        if len(found.seconds):
            yield _point(found.config(0), hw, float(found.seconds[0]))


def _point(cfg: Trainer.Config, hw: Hardware, seconds: float) -> Point:
    size = _size(cfg.set(input=cfg.input.set(batch_size=1)))
    tokens, chips = size.units * cfg.input.batch_size, hw.num_chips
    copies = math.prod(cfg.mesh.sizes[axis] for axis in ("data", "seq"))
    wait = max(LEAST_WAIT, 12 * size.parameters * copies / chips / HOST_BANDWIDTH)
    shares = {tier: goodput(chips, FAILURES, wait, recovery).share for tier, recovery in RECOVERY.items()}
    mfu = size.flops_per_unit * tokens / seconds / (chips * hw.chip.peak["bfloat16"])
    text, parts = cfg.mesh.text(), cfg.num_microbatches * cfg.mesh.num_microbatches
    reading = tokens / seconds * BYTES_PER_TOKEN / 1e9
    return Point(chips, hw.name, text, str(cfg.remat), parts, seconds, mfu, **shares, input_gigabytes=reading)


@functools.cache
def _size(cfg: Trainer.Config) -> Any:
    return size_of(cfg.set(mesh=type(cfg.mesh)()))


_DASHES = {"steps alone": "2 3", "after a stop, from memory": "", "after a stop, from storage": "7 4"}
_WIDTH, _HEIGHT, _TOP, _LEFT, _GAP = 300, 260, 66, 60, 40


def _draw_axes(canvas: Canvas, across: Scale, up: Scale, sizes: Sequence[int], title: str) -> None:
    for tenth in range(0, 11, 2):
        y = up.place(tenth / 10)
        canvas.line(across.start, y, across.end, y)
        if across.start == _LEFT:
            canvas.text(_LEFT - 8, y + 4, f"{tenth * 10} %", "dim", anchor="end", size=SMALL)
    for chips in sizes[::-2]:
        x = across.place(chips)
        canvas.line(x, up.end, x, up.start)
        label = f"{chips:,}" if chips < 1024 else f"{chips // 1024}K"
        canvas.text(x, up.start + 18, label, "dim", anchor="middle", size=SMALL)
    middle = (across.start + across.end) / 2
    canvas.text(middle, up.start + 38, "chips", "dim", anchor="middle")
    canvas.text(middle, up.end - 14, title, "dim", anchor="middle")


def picture(curves: dict[str, dict[str, list[Point]]], sizes: Sequence[int], name: str) -> Picture:
    """Returns the curves; `curves` are by way of scaling, then by chip."""
    canvas = Canvas(_LEFT + 2 * _WIDTH + _GAP + 20, f"{name}: MFU of all time, predicted")
    canvas.text(20, 24, f"{name}: MFU of all time, predicted", bold=True)
    up = Scale(0.0, 1.0, _TOP + _HEIGHT, _TOP)
    chips: dict[str, int] = {}
    for i, (title, by_chip) in enumerate(curves.items()):
        left = _LEFT + i * (_WIDTH + _GAP)
        across = Scale(sizes[0], sizes[-1], left, left + _WIDTH, log=True)
        _draw_axes(canvas, across, up, sizes, title)
        for chip, found in by_chip.items():
            color = chips.setdefault(chip, len(chips))
            for label, dash in _DASHES.items():
                line = [(across.place(point.chips), up.place(point.mfu * _share(point, label))) for point in found]
                canvas.path(line, color, width=2, dash=dash)
    entries = [Entry(chip, color, "") for chip, color in chips.items()]
    entries += [Entry(label, "dim", dash) for label, dash in _DASHES.items()]
    y = draw_legend(canvas, _LEFT, _TOP + _HEIGHT + 52, 2 * _WIDTH + _GAP, entries)
    return canvas.picture(y + 12)


def _share(point: Point, label: str) -> float:
    return point.memory if "memory" in label else point.storage if "storage" in label else 1.0


def curves_of(name: str, kinds: Sequence[str], sizes: Sequence[int]) -> dict[str, dict[str, list[Point]]]:
    """Returns all curves of a recipe."""
    weak = f"weak: {ROWS_PER_CHIP * 4096:,} tokens a chip"
    strong = f"strong: {ROWS * 4096 / 1e6:.1f}M tokens a batch"
    return {
        weak: {chip: list(points(name, chip, sizes, None)) for chip in kinds},
        strong: {chip: list(points(name, chip, sizes, ROWS)) for chip in kinds},
    }


def main() -> int:
    """Prints the points as JSON lines, and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="llama2-70b")
    parser.add_argument("--picture", default="docs/scaling.svg", help="the file to write")
    args = parser.parse_args()
    curves = curves_of(args.recipe, KINDS, SIZES)
    for title, by_chip in curves.items():
        for found in by_chip.values():
            for point in found:
                print(json.dumps({"curve": title, **point._asdict()}))
    picture(curves, SIZES, args.recipe).save(args.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
