# SPDX-License-Identifier: Apache-2.0
"""All jobs done as early as possible: a plan of the whole rest, and what each option is worth for it.

The plan is a linear program: `y` seconds of each option, so that every job is done, no job runs for longer than `T`, no
pool gives more than its chips times `T`, and `T` is least. Where jobs could be split at will, that would be the
earliest end. A decision follows it: a job is worth more where the plan has it, and the more the longer it takes there.
"""

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from ._demand import Cluster, Demand, Options

_ELSEWHERE = 0.01  # What an option is worth that the plan does not have: chips are not left idle.
_STARTS = 0.15  # What is left of the worth of a job that would have to start: few are stopped for others.
_TIGHT = 0.95  # Of the time that is left: a job that takes so much of it
_FIRST = 3.0  # is worth so much more.


def planned(cluster: Cluster, jobs: Sequence[Demand], options: Options) -> tuple[float, np.ndarray]:
    """Returns the earliest end, in hours, and the hours of each option in the plan of it."""
    count, columns, pools = len(jobs), len(options.job), len(cluster.pools)
    every = np.arange(columns)
    work = np.array([job.remaining for job in jobs])[options.job] + options.restart * options.rate
    runs = np.unique(options.job)
    rows = [options.job, count + options.job, count + runs, 2 * count + options.pool, 2 * count + np.arange(pools)]
    cols = [every, every, np.full(len(runs), columns), every, np.full(pools, columns)]
    sizes = [-float(pool.blocks * pool.block) for pool in cluster.pools]
    parts = [-3600 * options.rate / work, np.ones(columns), -np.ones(len(runs)), options.taken.astype(float), sizes]
    shape = (2 * count + pools, columns + 1)
    matrix = sparse.csr_array((np.concatenate(parts), (np.concatenate(rows), np.concatenate(cols))), shape=shape)
    done = np.zeros(count)
    done[runs] = -1.0
    limits = np.concatenate([done, np.zeros(count + pools)])
    found = linprog(np.append(np.zeros(columns), 1.0), A_ub=matrix, b_ub=limits, method="highs")
    return float(found.fun), found.x[:columns]


def critical(cluster: Cluster, jobs: Sequence[Demand], options: Options) -> np.ndarray:
    """Returns what each option is worth for an early end."""
    end, hours = planned(cluster, jobs, options)
    total = np.zeros(len(jobs))
    np.add.at(total, options.job, hours)
    total = np.maximum(total, 1e-9)[options.job]
    best = np.array([job.best for job in jobs])[options.job]
    remaining = np.array([job.remaining for job in jobs])[options.job]
    takes = (remaining / options.rate + options.restart) / 3600
    worth = (hours / total + _ELSEWHERE * options.rate / best) * options.taken * np.minimum(takes / end, 1.5)
    worth = worth * np.where(options.stays, 1.0, _STARTS)
    return worth * np.where(total > _TIGHT * end, _FIRST, 1.0)
