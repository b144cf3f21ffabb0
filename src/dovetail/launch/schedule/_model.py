# SPDX-License-Identifier: Apache-2.0
"""The integer program of a decision: which job has which chips.

A variable `x` for each option of a job is 0 or 1, and at most one of a job is 1. A variable `z` for each pool is the
number of blocks that small jobs share. Of a pool of blocks of `B` chips, `sum(taken / B * x_large) + z <= blocks` and
`sum(taken * x_small) <= B * z`. Members of a gang run together. A team has at most its quota and what it may borrow.
"""

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from ._demand import Cluster, Demand, Options
from ._pools import ancestors

_GAP = 1e-3  # Of the value: what an exact solution may be below the best.
_NODES = 2000  # Of the search tree. A limit in seconds would make decisions depend on the machine.


class Limit(NamedTuple):
    """How many chips of a pool a team may have."""

    team: str
    pool: int
    chips: float
    owns: int  # Of those, its quota.
    free: frozenset[int] = frozenset()  # Jobs that do not count.


class Model(NamedTuple):
    """What a decision has to obey."""

    cluster: Cluster
    jobs: Sequence[Demand]
    options: Options
    limits: Sequence[Limit]
    inside: Sequence[frozenset[str]]  # Of each job, its team and those above.
    groups: Sequence[Sequence[int]]  # Jobs that run together; most are alone.
    by_job: Sequence[np.ndarray]  # The options of each job.


class Prices(NamedTuple):
    """What one more would be worth: the duals of the linear program."""

    chips: np.ndarray  # Of each pool, a chip.
    limits: np.ndarray  # Of each limit of a team, a chip.


def model_of(cluster: Cluster, jobs: Sequence[Demand], options: Options) -> Model:
    """Returns the model for options of jobs."""
    groups: dict[str, list[int]] = {}
    for j, job in enumerate(jobs):
        groups.setdefault(f"gang {job.gang}" if job.gang else f"job {job.name}", []).append(j)
    teams = {team.name: team for team in cluster.teams}
    inside = [frozenset(ancestors(job.team, teams)) if job.team else frozenset[str]() for job in jobs]
    starts = np.searchsorted(options.job, np.arange(len(jobs) + 1))
    by_job = [np.arange(low, high) for low, high in itertools.pairwise(starts)]
    return Model(cluster, jobs, options, limits_of(cluster), inside, list(groups.values()), by_job)


def limits_of(cluster: Cluster) -> list[Limit]:
    """Returns what teams may have of each pool."""
    found = []
    for team in cluster.teams:
        if team.quota is not None:
            for p, pool in enumerate(cluster.pools):
                owns = team.quota.get(pool.name, 0)
                found.append(Limit(team.name, p, np.inf if team.borrow is None else owns + team.borrow, owns))
    return found


def best(model: Model, value: np.ndarray, must: Sequence[int] = ()) -> np.ndarray | None:
    """Returns the option of each job in the best solution, -1 for none; None if the solver found none.

    Args:
        must: jobs that have to run.
    """
    matrix, lower, upper = _rows(model, must)
    columns, pools = len(value), len(model.cluster.pools)
    blocks = [float(pool.blocks) for pool in model.cluster.pools]
    most: Any = np.concatenate([np.ones(columns), blocks])
    with _silent():
        found = milp(
            np.concatenate([-value, np.zeros(pools)]),
            integrality=np.ones(columns + pools),
            bounds=Bounds(0.0, most),
            constraints=LinearConstraint(matrix, lower, upper),
            options={"mip_rel_gap": _GAP, "node_limit": _NODES},
        )
    if found.x is None:
        return None
    return chosen(model, found.x[:columns] > 0.5)


def chosen(model: Model, taken: np.ndarray) -> np.ndarray:
    """Returns the option of each job, -1 for none."""
    found = np.full(len(model.jobs), -1)
    found[model.options.job[taken]] = np.flatnonzero(taken)
    return found


def relaxed(model: Model, value: np.ndarray) -> tuple[np.ndarray, Prices]:
    """Returns what part of each option the linear program takes, and its prices."""
    matrix, lower, upper = _rows(model, ())
    columns, pools = len(value), len(model.cluster.pools)
    if not columns:
        return np.zeros(0), Prices(np.zeros(pools), np.zeros(len(model.limits)))
    same, free = lower == upper, lower != upper
    finite = free & np.isfinite(upper)
    found = linprog(
        np.concatenate([-value, np.zeros(pools)]),
        A_ub=matrix[finite],
        b_ub=upper[finite],
        A_eq=matrix[same] if same.any() else None,
        b_eq=upper[same] if same.any() else None,
        bounds=(0, None),
        method="highs",
    )
    duals = np.zeros(len(upper))
    duals[finite] = np.maximum(0.0, -found.ineqlin.marginals)
    start = len(model.jobs) + len(_gangs(model))
    sizes = np.array([pool.block for pool in model.cluster.pools])
    return found.x[:columns], Prices(duals[start : start + pools] / sizes, duals[start + 2 * pools :])


def _rows(model: Model, must: Sequence[int]) -> tuple[Any, Any, Any]:
    """Returns the rows of the program: jobs, gangs, blocks of pools, small jobs of pools, limits of teams."""
    options, pools, jobs = model.options, model.cluster.pools, len(model.jobs)
    columns, every = len(options.job), np.arange(len(options.job))
    entries = [(options.job, every, np.ones(columns))]
    lower, upper = [np.zeros(jobs)], [np.ones(jobs)]
    lower[0][list(must)] = 1.0
    gangs = _gangs(model)
    for g, group in enumerate(gangs):  # The first member, so many times, is equal to the others, added up.
        for i, j in enumerate(group):
            sign = float(len(group) - 1) if i == 0 else -1.0
            mine = model.by_job[j]
            entries.append((np.full(len(mine), jobs + g), mine, np.full(len(mine), sign)))
    lower.append(np.zeros(len(gangs)))
    upper.append(np.zeros(len(gangs)))
    block = np.array([pool.block for pool in pools])[options.pool] if columns else np.zeros(0)
    large, start = options.taken >= block, jobs + len(gangs)
    entries.append((start + options.pool[large], every[large], (options.taken / np.maximum(block, 1))[large]))
    entries.append((start + np.arange(len(pools)), columns + np.arange(len(pools)), np.ones(len(pools))))
    entries.append((start + len(pools) + options.pool[~large], every[~large], options.taken[~large].astype(float)))
    sizes = np.array([float(pool.block) for pool in pools])
    entries.append((start + len(pools) + np.arange(len(pools)), columns + np.arange(len(pools)), -sizes))
    lower.append(np.full(2 * len(pools), -np.inf))
    upper.append(np.concatenate([[float(pool.blocks) for pool in pools], np.zeros(len(pools))]))
    start += 2 * len(pools)
    for i, limit in enumerate(model.limits):
        counted = counted_by(model, limit)
        entries.append((np.full(len(counted), start + i), counted, options.taken[counted].astype(float)))
    lower.append(np.full(len(model.limits), -np.inf))
    upper.append(np.array([float(limit.chips) for limit in model.limits]))
    rows, cols, values = (np.concatenate(each) for each in zip(*entries, strict=True))
    shape = (start + len(model.limits), columns + len(pools))
    return sparse.csr_array((values, (rows, cols)), shape=shape), np.concatenate(lower), np.concatenate(upper)


def _gangs(model: Model) -> list[Sequence[int]]:
    return [group for group in model.groups if len(group) > 1]


def counted_by(model: Model, limit: Limit) -> np.ndarray:
    """Returns the options that count against a limit of a team."""
    mine = np.array([limit.team in teams and j not in limit.free for j, teams in enumerate(model.inside)], bool)
    return np.flatnonzero(mine[model.options.job] & (model.options.pool == limit.pool))


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keeps from standard output what HiGHS prints there by itself: it would be in the middle of JSON."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
