# SPDX-License-Identifier: Apache-2.0
"""`dovetail predict RECIPE --on HARDWARE`: how long a training step would take, and what it would cost."""

import argparse
import json
import os
from typing import Any

from dovetail.progress import phase

from ._resolve import resolve
from ._what_if import add_what_if, print_what_if

_SHOWN = 8  # Config paths.


def add_predict(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--on", required=True, metavar="HARDWARE", help="as in tpu-v5p-512, gpu-h100-256")
    parser.add_argument(
        "--fast", action="store_true", help="from the traced program, in seconds; compiling takes minutes"
    )
    add_what_if(parser)
    parser.set_defaults(run=_predict)


def _predict(args: argparse.Namespace) -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Before JAX starts: it need not look for what is not there.
    run = resolve(args.recipe, args.overrides, on=args.on, devices=False, weights=False)
    from dovetail.plan import predicted

    assert run.hardware is not None
    if args.what_if:
        return print_what_if(args.recipe, run.cfg, run.hardware, as_json=args.json)
    with phase("tracing"):
        found = predicted(run.cfg, run.hardware, fast=args.fast)
    print(json.dumps(_named(args.recipe, found), indent=2) if args.json else _text(args.recipe, found))
    return 0


def _named(recipe: str, found: Any) -> dict[str, Any]:
    """Returns the figures, with the unit of the input in their names: `tokens_per_second_per_chip`."""
    figures = found._asdict()
    unit = figures.pop("unit")
    return {"recipe": recipe} | {name.replace("units", f"{unit}s"): value for name, value in figures.items()}


def _text(recipe: str, found: Any) -> str:
    low, high = found.interval
    cost = found.cost_per_trillion_units
    price = "no price is known" if cost is None else f"{cost:,.0f} US dollars for 10^12 {found.unit}s"
    lines = [
        f"{recipe} on {found.hardware}: a step takes {found.step_seconds:.3g} s ({low:.3g} to {high:.3g})",
        f"by its {found.method} program: MFU {found.mfu:.1%}, {found.units_per_second_per_chip:,.0f} {found.unit}s/s per chip, {price}",
        "",
        *(
            f"{name:<20} {seconds:8.3f} s {seconds / found.step_seconds:6.1%}"
            for name, seconds in sorted(found.breakdown.items(), key=lambda item: -item[1])
        ),
        *_paths(found),
        *(f"assumed: {each}" for each in found.assumptions),
    ]
    return "\n".join(lines)


def _paths(found: Any) -> list[str]:
    shown = list(found.by_path.items())[:_SHOWN]
    rows = [f"{path:<40} {seconds:8.3f} s" for path, seconds in shown]
    return ["", *rows, ""] if rows else []
