# SPDX-License-Identifier: Apache-2.0
"""`dovetail predict RECIPE --on HARDWARE`: how long a training step would take, and what it would cost."""

import argparse
import json
import os
from typing import Any

from dovetail.config import ConfigError
from dovetail.progress import phase

from ._calibrate import observed
from ._picture import add_picture, check_picture, save_picture
from ._resolve import resolve
from ._score import score_table
from ._what_if import add_what_if, print_what_if

_SHOWN = 8  # Config paths.


def add_predict(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--on", metavar="HARDWARE", help="as in tpu-v5p-512, gpu-h100-256")
    parser.add_argument(
        "--fast", action="store_true", help="from the traced program, in seconds; compiling takes minutes"
    )
    parser.add_argument("--score", metavar="FILE.csv", help="a table of measured steps, to compare predictions with")
    parser.add_argument(
        "--calibrate", nargs="+", default=[], metavar="RUN", help="directories of runs on such chips, to correct it by"
    )
    add_what_if(parser)
    add_picture(parser, "what a step goes to")
    parser.set_defaults(run=_predict)


def _predict(args: argparse.Namespace) -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Before JAX starts: it need not look for what is not there.
    check_picture(args)
    if args.picture and (args.score or args.what_if):
        raise ConfigError("--picture: a prediction is drawn, no table. Leave out --score and --what-if.")
    if args.score:
        return score_table(args.score, as_json=args.json)
    if args.recipe is None and args.overrides and "=" not in args.overrides[0]:
        args.recipe = args.overrides.pop(0)  # It stood behind an option.
    if args.recipe is None or args.on is None:
        raise ConfigError(
            f"predict: {'a recipe' if args.recipe is None else '--on HARDWARE'} is missing.\n"
            "  Say what to predict, and on which chips, as in `dovetail predict RECIPE --on tpu-v5p-512`; or give a "
            "table of measured steps to compare with: `dovetail predict --score FILE.csv`."
        )
    runs = [each for each in args.calibrate if "=" not in each]
    args.overrides += [each for each in args.calibrate if "=" in each]  # They stood behind the runs.
    run = resolve(args.recipe, args.overrides, on=args.on, devices=False, weights=False)
    from dovetail.plan import calibrated, predicted, prediction_picture

    assert run.hardware is not None
    if args.what_if:
        return print_what_if(args.recipe, run.cfg, run.hardware, as_json=args.json)
    with phase("tracing"):
        # Runs are compared with what is predicted of them from traced programs, so that is what they correct.
        found = predicted(run.cfg, run.hardware, fast=args.fast or bool(runs))
        if runs:
            found, _ = calibrated(found, run.cfg, run.hardware, observed(runs, run.hardware.chip))
    print(json.dumps(_named(args.recipe, found), indent=2) if args.json else _text(args.recipe, found))
    save_picture(args, lambda: prediction_picture(args.recipe, found))
    return 0


def _named(recipe: str, found: Any) -> dict[str, Any]:
    """Returns the figures, with the unit of the input in their names: `tokens_per_second_per_chip`."""
    figures = found._asdict()
    unit = figures.pop("unit")
    figures["timeline"] = [each._asdict() for each in found.timeline]
    return {"recipe": recipe} | {name.replace("units", f"{unit}s"): value for name, value in figures.items()}


def _text(recipe: str, found: Any) -> str:
    low, high = found.interval
    cost = found.cost_per_trillion_units
    price = "no price is known" if cost is None else f"{cost:,.0f} US dollars for 10^12 {found.unit}s"
    rate = f"{found.units_per_second_per_chip:,.0f} {found.unit}s/s per chip"
    lines = [
        f"{recipe} on {found.hardware}: a step takes {found.step_seconds:.3g} s ({low:.3g} to {high:.3g})",
        f"by its {found.method} program: MFU {found.mfu:.1%}, {rate}, {price}",
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
