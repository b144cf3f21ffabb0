# SPDX-License-Identifier: Apache-2.0
"""The prediction of a step from its compiled program where there is a compiler, else from its traced program."""

import math

from dovetail.aot import CompileError, versions
from dovetail.hardware import Hardware
from dovetail.train import Trainer

from ._estimate import GIB, usable_bytes
from ._predict import Prediction, predict
from ._report import compile_lowered, lower_step
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
    timed = compiled_parts(step, found.text)
    needed, usable = found.memory.total * hardware.chip.devices, usable_bytes(hardware) or math.inf
    fits = not found.refused and needed <= usable
    full = [] if fits else [f"it does not fit: {needed / GIB:.1f} of {usable / GIB:.1f} GiB per chip"]
    slower = sum(timed.parts.values()) / traced.step_seconds
    return traced.slowed(slower)._replace(
        breakdown=timed.parts,
        by_path=timed.by_path,
        timeline=timed.timeline,
        method="compiled",
        assumptions=[*full, *timed.assumptions],
        versions=versions(hardware),
    )
