# SPDX-License-Identifier: Apache-2.0
"""Curves of several runs beside each other."""

from collections.abc import Mapping, Sequence
from typing import Literal

from dovetail.config import ConfigError, did_you_mean
from dovetail.pictures import Curve, Panel, Picture, curves_picture
from dovetail.progress import Axis, Metrics

X = Literal["step", "tokens", "units", "time"]
AXES: dict[str, Axis] = {"step": "step", "tokens": "units", "units": "units", "time": "time"}
_USUAL = ("loss", "eval/loss")


def curves(
    runs: Mapping[str, Metrics],
    metrics: Sequence[str] = (),
    *,
    x: X = "step",
    smooth: float = 0.0,
    log: bool = False,
) -> Picture:
    """Returns the curves of runs, a panel for each metric; a run that has not measured one has no line there.

    Args:
        runs: what they have measured, by the names that stand in the picture.
        metrics: their names; by default the loss, also that of an evaluation.
        x: along which they are drawn: steps, what was trained on (tokens, or what else the input counts), or time.
        smooth: from 0 up to 1, the weight of the past in an exponential mean.
        log: a logarithmic scale for what is measured.
    """
    if not 0 <= smooth < 1:
        raise ConfigError(f"smooth is {smooth:g}, expected a number from 0 up to 1, as in 0.9.")
    if x not in AXES:
        raise ConfigError(f"x is {x!r}, expected one of {', '.join(AXES)}.")
    axis, names = AXES[x], list(metrics) or _usual(runs)
    known = sorted({name for found in runs.values() for name in found.columns})
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or (f" There is: {', '.join(known)}." if known else "")
            raise ConfigError(f"none of these runs has measured {name!r}.{hint}")
    units = {found.unit for found in runs.values()}
    if axis == "units" and (units == {""} or len(units) > 1):
        listed = ", ".join(sorted(unit or "nothing" for unit in units))
        raise ConfigError(f"x is {x!r}, and these runs count {listed}: they share no such axis. Use step or time.")
    label = {"step": "step", "units": next(iter(units)), "time": "time since the start"}[axis]
    about = f"{', '.join(names)} of {', '.join(runs)}"
    panels = [Panel(name, [_curve(run, found, name, axis) for run, found in runs.items()]) for name in names]
    return curves_picture(panels, label, about=about, smooth=smooth, log=log, time=axis == "time")


def _curve(run: str, found: Metrics, name: str, axis: Axis) -> Curve:
    if name not in found.columns:
        return Curve(run, [], [])
    return Curve(
        run, found.x(name, axis), found.columns[name].values, [found.at(step, axis) for step in found.restarts]
    )


def _usual(runs: Mapping[str, Metrics]) -> list[str]:
    """Returns the loss, or what else there is where a run has none."""
    found = [name for name in _USUAL if any(name in each.columns for each in runs.values())]
    if not found:
        found = sorted({name for each in runs.values() for name in each.columns})[:1]
    if not found:
        raise ConfigError(f"{', '.join(runs)}: nothing has been measured yet.")
    return found
