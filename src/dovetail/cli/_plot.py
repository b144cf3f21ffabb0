# SPDX-License-Identifier: Apache-2.0
"""`dovetail plot RUN...`: curves of one or several runs, as SVG or PNG."""

import argparse
import sys

from dovetail.pictures import check_picture_file
from dovetail.progress import read_metrics

_FILE = "curves.svg"
_AXES = ("step", "tokens", "units", "time")


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="the directory of a run, or one with directories of runs"
    )
    parser.add_argument("--metric", metavar="NAME,...", help="what to draw, a panel each; by default loss,eval/loss")
    parser.add_argument(
        "-x", choices=_AXES, default="step", help="along which: steps, tokens or what else is trained on, time"
    )
    parser.add_argument(
        "--smooth", type=float, default=0.0, metavar="S", help="from 0 up to 1: the weight of the past, as in 0.9"
    )
    parser.add_argument("--log", action="store_true", help="a logarithmic scale for what is measured")
    parser.add_argument("--to", metavar="FILE", default=_FILE, help=f"a .svg or .png; by default {_FILE}")
    parser.set_defaults(run=_plot)


def _plot(args: argparse.Namespace) -> int:
    check_picture_file(args.to)
    from dovetail.runs import curves, find_runs

    runs = {name: read_metrics(directory) for name, directory in find_runs(args.runs).items()}
    names = [name for name in (args.metric or "").split(",") if name]
    picture = curves(runs, names, x=args.x, smooth=args.smooth, log=args.log)
    for name in names:
        if without := [run for run, found in runs.items() if name not in found.columns]:
            print(f"without {name}: {', '.join(without)}", file=sys.stderr)
    print(picture.save(args.to))
    return 0
