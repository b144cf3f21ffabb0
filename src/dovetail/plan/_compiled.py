# SPDX-License-Identifier: Apache-2.0
"""The report on a recipe: from the cache, or from the compiler, with what would make it fit if it does not."""

from dovetail.aot import versions
from dovetail.hardware import Hardware
from dovetail.train import Trainer

from . import _cache
from ._report import Report, compile_step, lower_step
from ._suggest import suggestions


def compiled(cfg: Trainer.Config, hardware: Hardware, *, use_cache: bool = True) -> tuple[Report, bool]:
    """Returns the report for the config of a trainer on hardware, and whether it was kept from before."""
    step = lower_step(cfg, hardware)
    name = _cache.key(step.lowered.as_text(), cfg, hardware.name, versions(hardware))
    kept = _cache.load(name) if use_cache else None
    if kept is not None:
        return kept, True
    report = compile_step(step)
    if not report.fits:
        report = report._replace(suggestions=suggestions(cfg, hardware))
    _cache.store(name, report)
    return report, False
