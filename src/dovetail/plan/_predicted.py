# SPDX-License-Identifier: Apache-2.0
"""The prediction of a step from its compiled program where there is a compiler, else from its traced program."""

from dovetail.aot import CompileError, versions
from dovetail.hardware import Hardware
from dovetail.train import Trainer

from ._predict import Prediction, predict
from ._report import compile_lowered, lower_step, report_on
from ._timed import compiled_parts


def predicted(cfg: Trainer.Config, hardware: Hardware, *, fast: bool = False) -> Prediction:
    """Returns the prediction for the config of a trainer, which `on_hardware` returned.

    Args:
        fast: nothing is compiled, which can take minutes. Nor is it where no compiler is installed; that is said.
    """
    traced = predict(cfg, hardware)
    if fast:
        return traced
    try:
        step = lower_step(cfg, hardware)
        found, _ = compile_lowered(step)
    except CompileError as e:
        reason = str(e).splitlines()[0]
        return traced._replace(assumptions=[*traced.assumptions, f"traced, not compiled: {reason}"])
    timed, report = compiled_parts(step, found.text), report_on(step, found)
    limit = "" if report.hbm_limit_gib is None else f" of {report.hbm_limit_gib:.1f}"
    full = [] if report.fits else [f"it does not fit: {report.hbm_per_chip_gib:.1f}{limit} GiB per chip"]
    seconds = sum(timed.parts.values())
    slower = seconds / traced.step_seconds
    cost = traced.cost_per_trillion_units
    low, high = traced.interval
    return traced._replace(
        step_seconds=seconds,
        interval=(low * slower, high * slower),
        mfu=traced.mfu / slower,
        units_per_second_per_chip=traced.units_per_second_per_chip / slower,
        cost_per_trillion_units=None if cost is None else cost * slower,
        breakdown=timed.parts,
        by_path=timed.by_path,
        method="compiled",
        assumptions=[*full, *timed.assumptions],
        versions=versions(hardware),
    )
