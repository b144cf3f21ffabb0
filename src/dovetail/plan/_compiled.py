# SPDX-License-Identifier: Apache-2.0
"""The report on a recipe, with what would make it fit if it does not. What was compiled before is read again."""

from dovetail.hardware import Hardware
from dovetail.train import Trainer

from ._report import Report, compile_lowered, lower_step, report_on
from ._suggest import suggestions


def compiled(
    cfg: Trainer.Config, hardware: Hardware, *, use_cache: bool = True, suggest: bool = True
) -> tuple[Report, bool]:
    """Returns the report for the config of a trainer on hardware, and whether it was compiled before.

    `suggest`: if it does not fit, what would is looked for, by compiling more.
    """
    step = lower_step(cfg, hardware)
    found, kept = compile_lowered(step, use_cache=use_cache)
    report = report_on(step, found)
    if suggest and not report.fits:
        report = report._replace(suggestions=suggestions(cfg, hardware))
    return report, kept
