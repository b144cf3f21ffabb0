# SPDX-License-Identifier: Apache-2.0
"""Recipes on pools of chips, by the fast prediction of `dovetail.plan`. Apart from the rest, since it imports JAX."""

from collections.abc import Sequence

from dovetail.config import ConfigError
from dovetail.hardware import hardware
from dovetail.plan import FAILURES, goodput, on_hardware, policies_for, search
from dovetail.train import Trainer

from ._forecast import Predicted, hardware_name
from ._pools import Pool

_RECOVERY = 300.0  # Seconds, where a pool does not say.


def predicted(cfg: Trainer.Config, sizes: Sequence[tuple[Pool, int]]) -> Predicted:
    """Returns how fast a recipe is on so many chips of pools: the fastest way to run it that fits, by prediction.

    A rate counts steps that are kept: what fails or is taken away costs time, as `dovetail plan` has it.
    """
    rates, skipped, seconds = dict[tuple[str, int], float](), dict[tuple[str, int], str](), dict[str, float]()
    for pool, chips in sizes:
        try:
            name = hardware_name(pool, chips)
            if name not in seconds:
                seconds[name] = _step(cfg, name)
        except ConfigError as e:
            skipped[pool.name, chips] = str(e)
            continue
        fails = FAILURES if pool.interruptions is None else pool.interruptions
        recovery = _RECOVERY if pool.recovery_seconds is None else pool.recovery_seconds
        share = goodput(chips, fails, pool.checkpoint_seconds, recovery).share
        if share > 0:
            rates[pool.name, chips] = share / seconds[name]
        else:
            skipped[pool.name, chips] = "chips are taken away so often that a run would never get ahead"
    return Predicted(rates, skipped, float(cfg.steps))


def _step(cfg: Trainer.Config, name: str) -> float:
    """Returns the seconds of a step."""
    chips = hardware(name)
    base = on_hardware(cfg, name)
    found = search(base, chips, policies=policies_for(base, chips))
    if not len(found.seconds):
        raise ConfigError("nothing that divides the model and its batch fits in memory")
    return float(found.seconds[0])
