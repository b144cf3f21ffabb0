# SPDX-License-Identifier: Apache-2.0
"""What a scheduler knows of a job, and the ways in which it could run."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ._pools import Pool, Team

Objective = Literal["jct", "throughput", "fair", "cost", "makespan"]


class Demand(NamedTuple):
    """A job that is not done."""

    name: str
    rates: Mapping[tuple[str, int], float]  # Steps a second that are kept, by pool and chips.
    remaining: float  # Steps.
    team: str = ""
    priority: float = 1.0  # A job of priority 2 counts twice.
    deadline: float | None = None  # Seconds from now.
    gang: str = ""  # Jobs of one gang run together, or not at all.
    spares: int = 0  # Chips that it holds beside those that it computes with.
    waited: float = 0.0  # Seconds without chips, in all.
    ran: float = 0.0  # Seconds with chips, in all.
    at: tuple[str, int] | None = None  # Pool and chips that it has now.

    @property
    def best(self) -> float:
        """Steps a second where it is fastest."""
        return max(self.rates.values())


class Settings(NamedTuple):
    """How decisions are made."""

    objective: Objective = "jct"
    round: float = 360.0  # Seconds from one decision to the next.
    restart: float = 60.0  # Seconds that a start or a move takes.
    patience: float = 86_400.0  # Seconds that a job may wait before it has to run.
    exact: int = 300  # Up to so many jobs, the best placement is computed; beyond, a good one.


class Cluster(NamedTuple):
    """What is shared."""

    pools: tuple[Pool, ...]
    teams: tuple[Team, ...] = ()

    def restart(self, pool: int, settings: Settings) -> float:
        """Returns the seconds that a start takes."""
        own = self.pools[pool].recovery_seconds
        return settings.restart if own is None else own


class Options(NamedTuple):
    """All ways in which jobs could run; arrays with one entry for each."""

    job: np.ndarray  # Its index.
    pool: np.ndarray
    chips: np.ndarray
    taken: np.ndarray  # Chips that it occupies, with spares and what is left of blocks.
    rate: np.ndarray
    stays: np.ndarray  # Whether it runs so now.
    restart: np.ndarray  # Seconds that are lost first.


def options_of(cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> Options:
    """Returns the options of jobs, in order of jobs, pools and chips."""
    index = {pool.name: i for i, pool in enumerate(cluster.pools)}
    rows: list[tuple[int, int, int, int, float, bool, float]] = []
    for j, job in enumerate(jobs):
        for (name, chips), rate in sorted(job.rates.items()):
            pool = index.get(name)
            if pool is None or rate <= 0:
                continue
            taken = cluster.pools[pool].occupies(chips + job.spares)
            if taken > cluster.pools[pool].blocks * cluster.pools[pool].block:
                continue
            stays = job.at == (name, chips)
            rows.append((j, pool, chips, taken, rate, stays, 0.0 if stays else cluster.restart(pool, settings)))
    kinds = (int, int, int, int, float, bool, float)
    columns = zip(*rows, strict=True) if rows else [[]] * len(kinds)
    return Options(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))
