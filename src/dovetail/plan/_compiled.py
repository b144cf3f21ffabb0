# SPDX-License-Identifier: Apache-2.0
"""The report on a recipe, with what would make it fit if it does not. What was compiled before is read again."""

from dovetail.hardware import Hardware
from dovetail.train import Trainer

from ._predict import is_predictable
from ._report import Report, compile_lowered, lower_step, report_on
from ._suggest import suggestions
from ._timed import compiled_parts


def compiled(
    cfg: Trainer.Config, hardware: Hardware, *, use_cache: bool = True, suggest: bool = True, timed: bool = False
) -> tuple[Report, bool]:
    """Returns the report for the config of a trainer on hardware, and whether it was compiled before.

    Args:
        suggest: if it does not fit, what would is looked for, by compiling more.
        timed: with the order in which the time of a step passes, on chips of which enough is known.
    """
    step = lower_step(cfg, hardware)
    found, kept = compile_lowered(step, use_cache=use_cache)
    report = report_on(step, found)
    if timed and is_predictable(hardware):
        report = report._replace(timeline=compiled_parts(step, found.text).timeline)
    if suggest and not report.fits:
        report = report._replace(suggestions=suggestions(cfg, hardware))
    return report, kept
