# SPDX-License-Identifier: Apache-2.0
"""Policies: who has which chips in the next round. Ours, and simple ones to compare it with."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from ._decide import decide
from ._demand import Cluster, Demand, Options, Settings, options_of
from ._greedy import Room
from ._model import model_of

# Jobs come in the order in which they arrived; the answer says pool and chips of those that run.
Policy = Callable[[Cluster, Sequence[Demand], Settings], Mapping[str, tuple[str, int]]]


def ours(cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> Mapping[str, tuple[str, int]]:
    """Decides as `dovetail schedule` does."""
    return decide(cluster, jobs, settings).placed()


def fifo(cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> Mapping[str, tuple[str, int]]:
    """First come, first served, in the pool with the most free chips; nobody passes, and nobody moves."""
    return _one_by_one(cluster, jobs, settings, lambda job, o, free: free, stays=True, passes=False)


def best_free(cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> Mapping[str, tuple[str, int]]:
    """Who came first chooses the pool where it is fastest, of those with room; nobody moves."""
    return _one_by_one(cluster, jobs, settings, lambda job, rate, free: rate, stays=True)


def best_free_moves(cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> Mapping[str, tuple[str, int]]:
    """The same, anew in each round: who came first moves to a faster pool when there is room."""
    return _one_by_one(cluster, jobs, settings, lambda job, rate, free: rate, stays=False)


def least_attained(cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> Mapping[str, tuple[str, int]]:
    """Who has had the fewest chip-seconds chooses first."""

    def had(job: Demand) -> float:
        return job.ran * min(chips for _, chips in job.rates)

    return _one_by_one(cluster, sorted(jobs, key=had), settings, lambda job, rate, free: rate, stays=False)


class MaxMin:
    """Shares of time by a linear program that makes the smallest speed as large as can be, one round after the other.

    As in Gavel (Narayanan et al., OSDI 2020): in each round, who is farthest behind its share of a pool comes first.
    Shares are computed anew when jobs arrive or end. What is left over goes to who is fastest there.
    """

    def __init__(self) -> None:
        self._had: dict[tuple[str, str], int] = {}  # Rounds of a job on a pool, and in all,
        self._rounds: dict[str, int] = {}  # since shares were computed.
        self._share: dict[tuple[str, str], float] = {}
        self._names = frozenset[str]()

    def __call__(self, cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> Mapping[str, tuple[str, int]]:
        options = options_of(cluster, jobs, settings)
        names = [(jobs[j].name, cluster.pools[p].name) for j, p in zip(options.job, options.pool, strict=True)]
        if self._names != (now := frozenset(job.name for job in jobs)):
            self._names, self._had = now, {}
            self._share = dict(zip(names, _shares(cluster, jobs, options).tolist(), strict=True))
            self._rounds = dict.fromkeys(now, 0)
        share = np.array([self._share.get(name, 0.0) for name in names])
        had = np.array([self._had.get(name, 0) / (1 + self._rounds[name[0]]) for name in names])
        behind = np.where(share > 1e-3, share / (had + 1e-2) * (1 + 1e-6 * options.stays), 0.0)
        room, found = Room(model_of(cluster, jobs, options)), dict[str, tuple[str, int]]()
        for option in np.lexsort(
            (options.job, -options.rate, -options.stays.astype(float) * (behind == 0), -behind)
        ).tolist():
            name, pool = names[option]
            if name not in found and room.fits(option):
                room.take(option)
                found[name] = pool, int(options.chips[option])
                self._had[name, pool] = self._had.get((name, pool), 0) + 1
        for name in now:
            self._rounds[name] += 1
        return found


# What makes a policy: some remember what they gave.
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "fifo": lambda: fifo,
    "best free pool": lambda: best_free,
    "best free pool, moves": lambda: best_free_moves,
    "least attained": lambda: least_attained,
    "max-min shares": MaxMin,
}


def _shares(cluster: Cluster, jobs: Sequence[Demand], options: Options) -> np.ndarray:
    """Returns what part of the time each option gets, so that the smallest speed of a job is largest."""
    columns, count, pools = len(options.job), len(jobs), len(cluster.pools)
    sizes = np.array([float(pool.blocks * pool.block) for pool in cluster.pools])
    even = np.zeros(count)  # The speed of a chip of a job, on chips as they come.
    np.add.at(even, options.job, options.rate / options.taken * sizes[options.pool] / sizes.sum())
    every = np.arange(columns)
    rows = [options.job, np.arange(count), count + options.job, 2 * count + options.pool]
    cols = [every, np.full(count, columns), every, every]
    parts = [
        -options.rate / np.maximum(even[options.job], 1e-12),
        np.ones(count),
        np.ones(columns),
        options.taken.astype(float),
    ]
    entries = np.concatenate(parts), (np.concatenate(rows), np.concatenate(cols))
    matrix = sparse.csr_array(entries, shape=(2 * count + pools, columns + 1))
    limits = np.concatenate([np.zeros(count), np.ones(count), sizes])
    speed = np.append(-1e-2 * options.rate / np.maximum(even[options.job], 1e-12) / count, -1.0)
    found = linprog(speed, A_ub=matrix, b_ub=limits, method="highs")
    return found.x[:columns]


def _one_by_one(
    cluster: Cluster,
    jobs: Sequence[Demand],
    settings: Settings,
    score: Callable[[Demand, float, int], float],
    *,
    stays: bool,
    passes: bool = True,
) -> Mapping[str, tuple[str, int]]:
    """Places jobs in order, each in the option of the highest score that fits.

    Args:
        score: by job, rate, and free blocks of the pool.
        stays: jobs that run keep what they have.
        passes: a job that does not fit lets others pass.
    """
    options = options_of(cluster, jobs, settings)
    model, found = model_of(cluster, jobs, options), dict[str, tuple[str, int]]()
    room = Room(model)
    for job in range(len(jobs)):
        mine = [o for o in model.by_job[job].tolist() if stays and options.stays[o]]
        for option in mine:
            room.take(option)
            found[jobs[job].name] = cluster.pools[options.pool[option]].name, int(options.chips[option])
    for job in range(len(jobs)):
        if jobs[job].name in found:
            continue
        mine = [o for o in model.by_job[job].tolist() if room.fits(o)]
        if mine:
            chosen = max(
                mine, key=lambda o: (score(jobs[job], float(options.rate[o]), room.free(int(options.pool[o]))), -o)
            )
            room.take(chosen)
            found[jobs[job].name] = cluster.pools[options.pool[chosen]].name, int(options.chips[chosen])
        elif not passes:
            break
    return found
