# SPDX-License-Identifier: Apache-2.0
"""How fast jobs are: as measured, as a table of rates says, or as predicted for a recipe."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from dovetail.config import ConfigError
from dovetail.hardware import CHIPS, hardware

from ._demand import Demand
from ._jobs import JobSpec
from ._pools import Pool
from ._trace import Rates


class Predicted(NamedTuple):
    """A recipe on chips."""

    rates: Mapping[tuple[str, int], float]  # Steps a second that are kept, by pool and chips.
    skipped: Mapping[tuple[str, int], str]  # Why some have none.
    steps: float  # Of the whole run.


# Predicts a recipe with overrides on some numbers of chips of pools.
Forecast = Callable[[str, Sequence[str], Sequence[tuple[Pool, int]]], Predicted]


def demands(jobs: Sequence[JobSpec], pools: Sequence[Pool], rates: Rates, forecast: Forecast) -> list[Demand]:
    """Returns jobs with their rates; recipes are predicted where nothing was measured."""
    where = {pool.name: pool for pool in pools}
    return [_demand(job, where, rates, forecast) for job in jobs]


def _demand(job: JobSpec, pools: Mapping[str, Pool], table: Rates, forecast: Forecast) -> Demand:
    if job.kind and job.kind not in table and not job.rates and not job.recipe:
        raise ConfigError(
            f"[jobs.{job.name}]: kind is {job.kind!r}, of which --rates has no row.\n  Add some, or rates."
        )
    measured = {(pool, int(chips)): rate for pool, by_chips in job.rates.items() for chips, rate in by_chips.items()}
    fitting, steps, why = job.fitting(pools), job.steps, dict[tuple[str, int], str]()
    known = {**table.get(job.kind, {}), **measured}
    asked = [at for at in fitting if at not in known] if job.recipe else []
    if job.recipe and (asked or steps is None):
        sizes = {*asked, *((pool, chips) for pool, chips in measured if (pool, chips) in fitting)}
        found = forecast(job.recipe, job.overrides, [(pools[pool], chips) for pool, chips in sorted(sizes)])
        steps, why = found.steps if steps is None else steps, dict(found.skipped)
        known = {**corrected(found.rates, measured), **known}
    mine = {at: known[at] for at in fitting if at in known}
    if not mine:
        reasons = "".join(f"\n  {chips} of {pool}: {text.splitlines()[0]}" for (pool, chips), text in why.items())
        raise ConfigError(
            f"[jobs.{job.name}]: nothing says how fast it is anywhere where it may run.{reasons}\n"
            "  Give it rates, a kind that --rates has, or a recipe that can be predicted there."
        )
    assert steps is not None
    return Demand(
        name=job.name,
        rates=mine,
        remaining=steps,
        team=job.team,
        priority=job.priority,
        deadline=job.deadline_seconds,
        gang=job.gang,
        spares=job.spares,
        waited=job.waited_seconds,
        ran=job.ran_seconds,
        at=job.at,
    )


def corrected(
    predicted: Mapping[tuple[str, int], float], measured: Mapping[tuple[str, int], float]
) -> dict[tuple[str, int], float]:
    """Returns predictions times what was measured, by what was predicted: on the same pool, or else on all.

    >>> corrected({("a", 8): 2.0, ("a", 16): 4.0, ("b", 8): 1.0}, {("a", 8): 1.0})
    {('a', 8): 1.0, ('a', 16): 2.0, ('b', 8): 0.5}
    """
    ratios = {at: rate / predicted[at] for at, rate in measured.items() if at in predicted}
    if not ratios:
        return dict(predicted)
    every = median(ratios.values())
    found = {}
    for (pool, chips), rate in predicted.items():
        same = [ratio for (other, _), ratio in ratios.items() if other == pool]
        found[pool, chips] = rate * (median(same) if same else every)
    return found


def hardware_name(pool: Pool, chips: int) -> str:
    """Returns what so many chips of a pool are called; raises if they do not come so."""
    chip = CHIPS.get(pool.hardware or pool.name)
    if chip is None:
        raise ConfigError(f"{pool.name} names no chip of the hardware catalogue, so nothing can be predicted there.")
    name = f"{chip.name}-{chips * chip.unit}"
    if chip.torus is not None and 1 < pool.block < chips and chips % pool.block == 0:
        try:
            return hardware(name).name
        except ConfigError:
            return hardware(f"{chip.name}-{pool.block * chip.unit}x{chips // pool.block}").name
    return hardware(name).name
