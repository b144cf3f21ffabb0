# SPDX-License-Identifier: Apache-2.0
"""What it is worth that a job runs in some way: a number for each option, by objective."""

from collections.abc import Sequence

import numpy as np

from dovetail.config import ConfigError

from ._demand import Cluster, Demand, Options, Settings
from ._makespan import critical

_LASTS = 6  # Restarts that a placement is thought to last, at least;
_OF_REST = 0.05  # or so much of the time that the job still needs,
_AT_MOST = 14_400.0  # at most so many seconds.
_DEAR = 2.0  # Of the cheapest option of a job: what costs more is not worth it, unless there is a deadline.
_LATE = 0.25  # Of its value: what is left of an option that misses a deadline which others meet.


def values(cluster: Cluster, jobs: Sequence[Demand], options: Options, settings: Settings) -> np.ndarray:
    """Returns what each option is worth, 1 at most; 0 if it is not to be taken.

    - jct: `speed / sqrt(time that is left)`. By `1 / time` short jobs would stop long ones all the time; by speed
      alone they would wait for them.
    - throughput: speed.
    - fair: speed, by the share of its time that the job has run so far.
    - cost: what a step costs in the cheapest option, by what it costs here.
    - makespan: what a plan of the whole rest gives it (`_makespan.py`).

    Speed is that of the option, by that of the fastest option of the job. All are multiplied by priority, by how long
    the job has waited, by how near its deadline is, and by what is lost to a start or a move.
    """
    if not len(options.job):
        return np.zeros(0)

    def of(each: Sequence[float]) -> np.ndarray:
        return np.array(each, float)[options.job]

    speed, needs = options.rate / of([job.best for job in jobs]), of([job.remaining / job.best for job in jobs])
    waited, ran = of([job.waited for job in jobs]), of([job.ran for job in jobs])
    lasts = np.maximum(settings.round, _LASTS * np.maximum(options.restart, 1e-9))
    moves = 1 - options.restart / np.maximum(lasts, np.minimum(_OF_REST * needs, _AT_MOST))
    worth = of([job.priority for job in jobs]) * _urgency(jobs, options)
    match settings.objective:
        case "jct":
            worth = worth * speed / np.sqrt(np.maximum(needs, settings.round))
        case "throughput":
            worth = worth * speed
        case "fair":
            worth = worth * speed / (0.1 + ran / np.maximum(ran + waited, settings.round))
        case "cost":
            worth = worth * _cheapness(cluster, jobs, options)
        case "makespan":
            return _scaled(worth * critical(cluster, jobs, options))
    return _scaled(worth * moves * (1 + waited / settings.patience))


def _scaled(worth: np.ndarray) -> np.ndarray:
    most = worth.max()
    return worth / most if most > 0 else worth


def _urgency(jobs: Sequence[Demand], options: Options) -> np.ndarray:
    """Returns a factor for each option: more the nearer a deadline that can be met, less for options that miss it."""
    deadline = np.array([np.inf if job.deadline is None else job.deadline for job in jobs])
    if np.isinf(deadline).all():
        return np.ones(len(options.job))
    takes = options.restart + np.array([job.remaining for job in jobs])[options.job] / options.rate
    least = np.full(len(jobs), np.inf)
    np.minimum.at(least, options.job, takes)
    some = np.isfinite(deadline)
    used = np.zeros(len(jobs))  # Of the time until then.
    used[some] = least[some] / np.maximum(deadline[some], 1e-9)
    factor = np.where(used <= 1, 1 / np.maximum(0.1, 1 - used), 1.0)[options.job]
    misses = (takes > deadline[options.job]) & (used <= 1)[options.job]
    return np.where(misses, _LATE, factor)


def _cheapness(cluster: Cluster, jobs: Sequence[Demand], options: Options) -> np.ndarray:
    """Returns the lowest price of a step of each job, by that of the option; 0 where it is much too dear."""
    free = [pool.name for pool in cluster.pools if pool.count and not pool.chip_hour]
    if free:
        raise ConfigError(
            f"{', '.join(free)}: no price is known, and --objective cost needs one of every pool.\n"
            "  Add price = ... (US dollars a chip-hour) and price_date = ... to it in POOLS."
        )
    price = np.array([pool.chip_hour for pool in cluster.pools])[options.pool] * options.taken / options.rate
    least = np.full(len(jobs), np.inf)
    np.minimum.at(least, options.job, price)
    ratio = least[options.job] / price
    pressed = np.array([job.deadline is not None for job in jobs])[options.job]
    return np.where((ratio * _DEAR >= 1) | pressed | options.stays, ratio**2, 0.0)
