# SPDX-License-Identifier: Apache-2.0
"""A simulator: jobs arrive, a policy decides in rounds, starts and moves cost time.

At the start of each round the policy is asked. A job that moves, or goes on after a stop, first loses the seconds of a
restart. Its first start is part of its work, the same for every policy, unless one asks that it takes as long. A job
that ends within a round ends then, and its chips are free in the next round.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dovetail.config import ConfigError

from ._demand import Cluster, Demand, Settings
from ._policies import Policy


class Arrival(NamedTuple):
    """A job of a trace."""

    job: Demand
    seconds: float  # When it arrives.
    kind: str = ""  # Jobs of one kind are equally fast.


class Outcome(NamedTuple):
    """What a policy made of a trace."""

    jobs: int
    mean: float  # Seconds from arrival to end.
    median: float
    p99: float
    waited: float  # Seconds without chips, on average.
    makespan: float  # Seconds from the first arrival to the last end.
    restarts: float  # Of a job, beyond its first start, on average.
    utilisation: float  # Chips that are held, of all, over the makespan.
    dollars: float  # For all chips that were held.
    rounds: int
    cpu_seconds: float  # Of the policy.
    ends: Mapping[str, float]  # Of each job, seconds.
    line: Sequence[tuple[float, float, int]]  # By round: seconds, part of chips held, jobs that wait.


Speeds = Mapping[tuple[str, int], float]  # Steps a second, by pool and chips.


class _Run(NamedTuple):
    job: Demand  # As the policy knows it.
    rates: Speeds  # As they are.
    kind: str
    starts: int = 0


def wrong(arrivals: Sequence[Arrival], error: float, seed: int) -> list[Arrival]:
    """Returns jobs of which a policy believes wrong rates: each off by a factor of `1 - error` to `1 + error`.

    Jobs of one kind share the errors, as predictions do.
    """
    rng, factors = np.random.default_rng(seed), dict[tuple[str, str, int], float]()
    found = []
    for arrival in sorted(arrivals, key=lambda each: (each.seconds, each.job.name)):
        rates = {}
        for (pool, chips), rate in sorted(arrival.job.rates.items()):
            key = arrival.kind or arrival.job.name, pool, chips
            factors.setdefault(key, float(rng.uniform(1 - error, 1 + error)))
            rates[pool, chips] = rate * factors[key]
        found.append(arrival._replace(job=arrival.job._replace(rates=rates)))
    return found


def simulate(
    cluster: Cluster,
    arrivals: Sequence[Arrival],
    settings: Settings,
    policy: Policy,
    *,
    believed: Sequence[Arrival] | None = None,
    learns: bool = True,
    first: bool = False,
) -> Outcome:
    """Returns what a policy makes of jobs.

    Args:
        believed: the same jobs, with the rates that the policy believes until it has seen the true ones: a job that has
            run for a round reports its rate, which replaces what was believed for all jobs of its kind.
        learns: whether it does.
        first: whether a first start takes as long as a restart.
    """
    known = {each.job.name: each.job.rates for each in believed or arrivals}
    state = _State(cluster, settings, known, first)
    queue = sorted(arrivals, key=lambda each: (each.seconds, each.job.name))
    rounds, cpu, now = 0, 0.0, 0.0
    while queue or state.runs:
        rounds += 1
        if not state.runs:
            now = max(now, math.ceil(queue[0].seconds / settings.round) * settings.round)
        while queue and queue[0].seconds <= now:
            state.arrive(queue.pop(0), now)
        started = time.process_time()
        placed = policy(cluster, [run.job for run in state.runs.values()], settings)
        cpu += time.process_time() - started
        if not placed and not queue:
            named = ", ".join(list(state.runs)[:3])
            raise ConfigError(f"{named}: nothing runs, and nothing else arrives: it can never run.")
        ran = state.step(placed, now)
        if believed is not None and learns:
            state.learn(ran)
        now += settings.round
    return state.outcome(arrivals, rounds, cpu)


class _State:
    """Jobs that have arrived and are not done, and what has been so far."""

    def __init__(self, cluster: Cluster, settings: Settings, known: Mapping[str, Speeds], first: bool) -> None:
        self.runs: dict[str, _Run] = {}
        self._cluster, self._settings, self._known, self._first = cluster, settings, known, first
        self._seen: dict[tuple[str, str, int], float] = {}  # Speeds that were measured, by kind, pool and chips.
        self._pools = {pool.name: pool for pool in cluster.pools}
        self._chips = max(1, sum(pool.blocks * pool.block for pool in cluster.pools))
        self._ends: dict[str, float] = {}
        self._line: list[tuple[float, float, int]] = []
        self._starts, self._waited, self._held, self._dollars = 0, 0.0, 0.0, 0.0

    def arrive(self, new: Arrival, now: float) -> None:
        """Lets a job in."""
        waited, rates = now - new.seconds, _learnt(self._known[new.job.name], new.kind or new.job.name, self._seen)
        job = new.job._replace(rates=rates, waited=waited)
        self.runs[job.name] = _Run(job, new.job.rates, new.kind or job.name)
        self._waited += waited

    def step(self, placed: Mapping[str, tuple[str, int]], now: float) -> dict[tuple[str, str, int], float]:
        """Runs a round; returns the rates that were measured."""
        taken, measured, round_ = 0, dict[tuple[str, str, int], float](), self._settings.round
        waiting = len(self.runs.keys() - placed.keys())
        for name, run in list(self.runs.items()):
            where = placed.get(name)
            self.runs[name], seconds = _step(run, where, self._cluster, self._settings, self._first)
            if where is None:
                self._waited += round_
                continue
            pool = self._pools[where[0]]
            mine = pool.occupies(where[1] + run.job.spares)
            taken, self._held = taken + mine, self._held + mine * seconds
            self._dollars += mine * seconds / 3600 * pool.chip_hour
            measured[run.kind, where[0], where[1]] = run.rates[where]
            if self.runs[name].job.remaining <= 0:
                self._ends[name] = now + seconds
                self._starts += self.runs.pop(name).starts
        self._line.append((now, taken / self._chips, waiting))
        return measured

    def learn(self, measured: Mapping[tuple[str, str, int], float]) -> None:
        """Replaces what was believed of kinds of jobs by what was measured."""
        if measured.keys() - self._seen.keys():
            self._seen.update(measured)
            for name, run in self.runs.items():
                job = run.job._replace(rates=_learnt(run.job.rates, run.kind, self._seen))
                self.runs[name] = run._replace(job=job)

    def outcome(self, arrivals: Sequence[Arrival], rounds: int, cpu: float) -> Outcome:
        """Returns what has been."""
        took = np.array([self._ends[each.job.name] - each.seconds for each in arrivals])
        span = max(self._ends.values()) - min(each.seconds for each in arrivals)
        return Outcome(
            jobs=len(arrivals),
            mean=float(took.mean()),
            median=float(np.median(took)),
            p99=float(np.percentile(took, 99)),
            waited=self._waited / len(arrivals),
            makespan=span,
            restarts=self._starts / len(arrivals) - 1,
            utilisation=self._held / (self._chips * span),
            dollars=self._dollars,
            rounds=rounds,
            cpu_seconds=cpu,
            ends=self._ends,
            line=self._line,
        )


def _learnt(rates: Speeds, kind: str, seen: Mapping[tuple[str, str, int], float]) -> Speeds:
    """Returns rates, those replaced that were seen."""
    if not seen:
        return rates
    return {(pool, chips): seen.get((kind, pool, chips), rate) for (pool, chips), rate in rates.items()}


def _step(
    run: _Run, where: tuple[str, int] | None, cluster: Cluster, settings: Settings, first: bool
) -> tuple[_Run, float]:
    """Returns a job after a round, and the seconds of the round for which it held chips."""
    job = run.job
    if job.deadline is not None:  # It is seconds from now.
        job = job._replace(deadline=max(0.0, job.deadline - settings.round))
    if where is None:
        return run._replace(job=job._replace(at=None, waited=job.waited + settings.round)), 0.0
    pool = next(i for i, pool in enumerate(cluster.pools) if pool.name == where[0])
    starts = job.at != where
    lost = cluster.restart(pool, settings) if starts and (first or run.starts) else 0.0
    rate, left = run.rates[where], settings.round - lost
    if job.remaining <= rate * left:
        seconds = lost + job.remaining / rate
        return run._replace(job=job._replace(remaining=0.0), starts=run.starts + starts), seconds
    done = job._replace(at=where, remaining=job.remaining - rate * max(0.0, left), ran=job.ran + settings.round)
    return run._replace(job=done, starts=run.starts + starts), settings.round
