# SPDX-License-Identifier: Apache-2.0
"""Whether the metric that the best checkpoints are kept by is one that a run reports, and at steps that are saved."""

import difflib
import functools
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.config import ConfigError

if TYPE_CHECKING:
    from ._trainer import Trainer

_log = logging.getLogger(__name__)


def check_keep_best(cfg: "Trainer.Config") -> None:
    """Raises a ConfigError if no evaluator can report the metric at a step that is saved."""
    best = cfg.checkpoint.keep_best
    if best is None:
        return
    where, (name, _, _) = "checkpoint.keep_best.metric", best.metric.partition("/")
    if name not in cfg.evaluators:
        there = ", ".join(map(repr, cfg.evaluators)) or "none"
        near = difflib.get_close_matches(name, cfg.evaluators, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"{where}: {best.metric!r} is reported by no evaluator: there is no {name!r}, only {there}.{hint}\n"
            "  A metric goes by the name of its evaluator: eval/loss."
        )
    every = cfg.evaluators[name].every
    if every is None or math.lcm(every, cfg.save_every) > cfg.steps:
        when = "at the end alone" if every is None else f"every {every} steps"
        raise ConfigError(
            f"{where}: {name!r} evaluates {when}, and steps are saved every {cfg.save_every}: never the same step "
            f"before the end.\n  Use evaluators.{name}.every={cfg.save_every}."
        )


def warn_if_missing(cfg: "Trainer.Config", evaluator: str, metrics: Mapping[str, float]) -> None:
    """Warns, once, if an evaluator has not reported the metric that it should have."""
    best = cfg.checkpoint.keep_best
    if best is not None and best.metric.partition("/")[0] == evaluator and best.metric not in metrics:
        found = ", ".join(map(repr, metrics)) or "nothing"
        _warn(f"checkpoint.keep_best: {best.metric!r} is not reported, only {found}: no step is the best.")


@functools.cache
def _warn(text: str) -> None:
    _log.warning("%s", text)
