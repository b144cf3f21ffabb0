# SPDX-License-Identifier: Apache-2.0
"""Scales of auxiliary losses, by path and by step: `{"model.stack.*": LinearSchedule.Config(...)}`."""

from collections.abc import Mapping, Sequence
from typing import Any

from jax import Array

from dovetail.config import ConfigError
from dovetail.optim import Schedule, matching


class LossScales:
    """What each auxiliary loss is multiplied by. `steps` are those of the run, by which a schedule ends."""

    def __init__(self, cfg: Mapping[str, Schedule.Config | float], steps: int) -> None:
        self._scales: dict[str, Any] = {
            pattern: scale.build(path=f"loss_scales[{pattern!r}]", steps=steps)
            if isinstance(scale, Schedule.Config)
            else scale
            for pattern, scale in cfg.items()
        }

    def apply(self, losses: Mapping[str, Array], step: Array) -> dict[str, Array]:
        """Returns the losses of a step, scaled; each by the first pattern that fits its path."""
        chosen = self.check(list(losses))
        found = {path: self._scales[chosen[path]] for path in losses if path in chosen}
        factors = {path: scale(step) if isinstance(scale, Schedule) else scale for path, scale in found.items()}
        return {path: loss * factors[path] if path in factors else loss for path, loss in losses.items()}

    def check(self, paths: Sequence[str]) -> dict[str, str]:
        """Returns the pattern that scales each loss, for those that one fits; raises if a pattern fits none."""
        if self._scales and not paths:
            raise ConfigError(f"loss_scales: {next(iter(self._scales))!r} fits nothing: there is no auxiliary loss.")
        chosen: dict[str, str] = {}
        for pattern in self._scales:
            for path in matching(pattern, list(paths), "loss_scales", "no auxiliary loss"):
                chosen.setdefault(path, pattern)
        return chosen
