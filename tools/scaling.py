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
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.hardware import Hardware, hardware
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


_COLORS = {"tpu-v5p": "#0072b2", "gpu-h100": "#d55e00"}  # Told apart by the colour-blind.
_DASHES = {"steps alone": "2 4", "after a stop, from memory": "", "after a stop, from storage": "7 4"}
_WIDTH, _HEIGHT, _TOP, _LEFT, _GAP = 300, 260, 60, 60, 40
_MOST = 1.0  # MFU at the top.


def _place(point: Point, share: float, left: float, sizes: Sequence[int]) -> str:
    across = math.log(point.chips / sizes[0]) / math.log(sizes[-1] / sizes[0])
    return f"{left + across * _WIDTH:.1f},{_TOP + _HEIGHT * (1 - point.mfu * share / _MOST):.1f}"


def _axes(left: float, sizes: Sequence[int], title: str) -> Iterator[str]:
    bottom = _TOP + _HEIGHT
    for tenth in range(0, round(_MOST * 10) + 1, 2):
        y = _TOP + _HEIGHT * (1 - tenth / 10 / _MOST)
        yield f'<path d="M{left} {y:.1f}h{_WIDTH}" stroke="#ddd"/>'
        if left == _LEFT:
            yield f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth * 10} %</text>'
    for chips in sizes[::-2]:
        x = left + math.log(chips / sizes[0]) / math.log(sizes[-1] / sizes[0]) * _WIDTH
        yield f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#eee"/>'
        label = f"{chips:,}" if chips < 1024 else f"{chips // 1024}K"
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
    yield f'<text x="{left + _WIDTH / 2}" y="{bottom + 40}" text-anchor="middle">chips</text>'
    yield f'<text x="{left + _WIDTH / 2}" y="{_TOP - 16}" text-anchor="middle">{title}</text>'


def picture(curves: dict[str, dict[str, list[Point]]], sizes: Sequence[int], name: str) -> str:
    """Returns the curves as SVG; `curves` are by way of scaling, then by chip."""
    width, height = _LEFT + 2 * _WIDTH + _GAP + 20, _TOP + _HEIGHT + 110
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="8" y="16">{name}: MFU of all time, predicted</text>',
    ]
    for i, (title, by_chip) in enumerate(curves.items()):
        left = _LEFT + i * (_WIDTH + _GAP)
        parts += _axes(left, sizes, title)
        for chip, found in by_chip.items():
            for label, dash in _DASHES.items():
                shares = [_share(point, label) for point in found]
                line = " ".join(_place(p, share, left, sizes) for p, share in zip(found, shares, strict=True))
                look = f'fill="none" stroke="{_COLORS[chip]}" stroke-width="2" stroke-dasharray="{dash}"'
                parts.append(f'<polyline points="{line}" {look}/>')
    return "\n".join([*parts, *_legend(_TOP + _HEIGHT + 64), "</svg>\n"])


def _share(point: Point, label: str) -> float:
    return point.memory if "memory" in label else point.storage if "storage" in label else 1.0


def _legend(y: float) -> Iterator[str]:
    for i, (chip, color) in enumerate(_COLORS.items()):
        yield f'<path d="M{_LEFT + 130 * i} {y}h26" stroke="{color}" stroke-width="3"/>'
        yield f'<text x="{_LEFT + 34 + 130 * i}" y="{y + 4}">{chip}</text>'
    for i, (label, dash) in enumerate(_DASHES.items()):
        yield f'<path d="M{_LEFT + 210 * i} {y + 24}h34" stroke="#444" stroke-width="2" stroke-dasharray="{dash}"/>'
        yield f'<text x="{_LEFT + 42 + 210 * i}" y="{y + 28}">{label}</text>'


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
    Path(args.picture).write_text(picture(curves, SIZES, args.recipe), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
