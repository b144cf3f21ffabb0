# SPDX-License-Identifier: Apache-2.0
"""`dovetail plot RUN...`: curves of one or several runs, as SVG or PNG."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dovetail.config import ConfigError, did_you_mean
from dovetail.pictures import Curve, Panel, Picture, check_picture_file, curves_picture
from dovetail.progress import METRICS, Axis, Metrics, read_metrics

_FILE = "curves.svg"
_USUAL = ("loss", "eval/loss")
_AXES: dict[str, Axis] = {"step": "step", "tokens": "units", "units": "units", "time": "time"}


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="the directory of a run, or one with directories of runs"
    )
    parser.add_argument(
        "--metric", metavar="NAME,...", help=f"what to draw, a panel each; by default {' and '.join(_USUAL)}"
    )
    parser.add_argument(
        "-x", choices=tuple(_AXES), default="step", help="along which: steps, tokens or what else is trained on, time"
    )
    parser.add_argument(
        "--smooth",
        type=float,
        default=0.0,
        metavar="S",
        help="from 0 up to 1: the weight of the past, as in 0.9",
    )
    parser.add_argument("--log", action="store_true", help="a logarithmic scale for what is measured")
    parser.add_argument("--to", metavar="FILE", default=_FILE, help=f"a file, .svg or .png; by default {_FILE}")
    parser.set_defaults(run=_plot)


def _plot(args: argparse.Namespace) -> int:
    check_picture_file(args.to)
    if not 0 <= args.smooth < 1:
        raise ConfigError(f"--smooth is {args.smooth:g}, expected a number from 0 up to 1, as in 0.9.")
    runs = {name: read_metrics(directory) for name, directory in _named(_directories(args.runs)).items()}
    names = [name for name in (args.metric or "").split(",") if name] or _usual(runs)
    picture = plot_runs(runs, names, _AXES[args.x], smooth=args.smooth, log=args.log)
    for name in names:
        if without := [run for run, found in runs.items() if name not in found.columns]:
            print(f"without {name}: {', '.join(without)}", file=sys.stderr)
    print(picture.save(args.to))
    return 0


def plot_runs(
    runs: dict[str, Metrics], names: Sequence[str], axis: Axis, *, smooth: float = 0.0, log: bool = False
) -> Picture:
    """Returns the curves of runs, a panel for each metric that at least one of them has."""
    known = sorted({name for found in runs.values() for name in found.columns})
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or (f" There is: {', '.join(known)}." if known else "")
            raise ConfigError(f"--metric: none of these runs has measured {name!r}.{hint}")
    units = {found.unit for found in runs.values()}
    if axis == "units" and (units == {""} or len(units) > 1):
        listed = ", ".join(sorted(unit or "nothing" for unit in units))
        raise ConfigError(f"-x tokens: these runs count {listed}, so they share no such axis. Use -x step or -x time.")
    panels = [
        Panel(
            name,
            [
                Curve(run, found.x(name, axis), found.columns[name].values, [found.at(s, axis) for s in found.restarts])
                for run, found in runs.items()
                if name in found.columns
            ],
        )
        for name in names
    ]
    label = {"step": "step", "units": next(iter(units), ""), "time": "time since the start"}[axis]
    about = f"{', '.join(names)} of {', '.join(runs)}"
    return curves_picture(panels, label, about=about, smooth=smooth, log=log, time=axis == "time")


def _directories(names: Sequence[str]) -> list[Path]:
    """Returns the directories of runs: those that are named, or those inside of what is named."""
    found: list[Path] = []
    for name in names:
        directory = Path(name)
        inside = sorted(file.parent for file in directory.glob(f"*/{METRICS}"))
        if (directory / METRICS).is_file():
            found.append(directory)
        elif inside:
            found += inside
        else:
            what = f"there is no {METRICS} in it" if directory.is_dir() else "there is no such directory"
            raise ConfigError(f"{name}: {what}. Give the directory of a run, or one with directories of runs.")
    return list(dict.fromkeys(found))


def _named(directories: Sequence[Path]) -> dict[str, Path]:
    """Returns directories by what tells them apart: without what their paths share."""
    whole = [os.path.abspath(each) for each in directories]
    shared = os.path.commonpath([os.path.dirname(each) for each in whole])
    return {os.path.relpath(each, shared): directory for each, directory in zip(whole, directories, strict=True)}


def _usual(runs: dict[str, Metrics]) -> list[str]:
    """Returns the loss, or what else there is where a run has none."""
    found = [name for name in _USUAL if any(name in each.columns for each in runs.values())]
    if not found:
        found = sorted({name for each in runs.values() for name in each.columns})[:1]
    if not found:
        raise ConfigError(f"{', '.join(runs)}: nothing has been measured yet.")
    return found
