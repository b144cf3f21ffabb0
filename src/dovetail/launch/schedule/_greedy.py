# SPDX-License-Identifier: Apache-2.0
"""One job after the other: what is placed stays, and the next gets what is left."""

from collections.abc import Sequence

import numpy as np

from ._model import Model


class Room:
    """What is left of pools, and of what teams may have."""

    def __init__(self, model: Model) -> None:
        pools = model.cluster.pools
        self._model = model
        self._block = [pool.block for pool in pools]
        self._blocks = [pool.blocks for pool in pools]
        self._large = [0] * len(pools)  # Blocks.
        self._small = [0] * len(pools)  # Chips.
        self._left = [limit.chips for limit in model.limits]
        self._limits: dict[tuple[int, int], list[int]] = {}
        self._pool, self._taken = model.options.pool.tolist(), model.options.taken.tolist()
        self._job = model.options.job.tolist()

    def free(self, pool: int) -> int:
        """Returns how many whole blocks are free."""
        shared = -(-self._small[pool] // self._block[pool])
        return self._blocks[pool] - self._large[pool] - shared

    def fits(self, option: int) -> bool:
        """Whether an option can be taken now."""
        return self.blocks_missing(option) <= 0 and self.chips_over(option) <= 0

    def blocks_missing(self, option: int) -> int:
        """Returns how many blocks an option needs beyond those that are free."""
        pool, taken = self._pool[option], self._taken[option]
        block = self._block[pool]
        if taken >= block:
            return taken // block - self.free(pool)
        shared = -(-(self._small[pool] + taken) // block)
        return self._large[pool] + shared - self._blocks[pool]

    def chips_over(self, option: int) -> float:
        """Returns by how many chips an option is over what its team may have."""
        return max((self._taken[option] - self._left[i] for i in self.limits(option)), default=0.0)

    def left(self, limit: int) -> float:
        """Returns how many chips a limit leaves."""
        return self._left[limit]

    def limits(self, option: int) -> list[int]:
        """Returns the limits that an option counts against."""
        job, pool = self._job[option], self._pool[option]
        if (job, pool) not in self._limits:
            self._limits[job, pool] = [
                i
                for i, limit in enumerate(self._model.limits)
                if limit.pool == pool and limit.team in self._model.inside[job] and job not in limit.free
            ]
        return self._limits[job, pool]

    def take(self, option: int, sign: int = 1) -> None:
        """Takes an option, or gives it back if the sign is -1."""
        pool, taken = self._pool[option], self._taken[option]
        if taken >= self._block[pool]:
            self._large[pool] += sign * taken // self._block[pool]
        else:
            self._small[pool] += sign * taken
        for i in self.limits(option):
            self._left[i] -= sign * taken


def greedy(model: Model, score: np.ndarray, first: Sequence[int] = (), start: np.ndarray | None = None) -> np.ndarray:
    """Returns the option of each job, -1 for none: those of the highest score first, and each gets the best that fits.

    Args:
        score: of each option; minus infinity for those that are not to be taken.
        first: jobs that come before all others, in this order, whatever their score.
        start: options that jobs have already.
    """
    found, room = np.full(len(model.jobs), -1) if start is None else start.copy(), Room(model)
    group_of = {j: g for g, group in enumerate(model.groups) for j in group}
    jobs, done = model.options.job.tolist(), {group_of[j] for j in np.flatnonzero(found >= 0).tolist()}
    for option in found[found >= 0].tolist():
        room.take(option)
    order = np.lexsort((np.arange(len(score)), -score))
    for g in [group_of[j] for j in first]:
        _place(model, score, room, found, g, done)
    for option in order[: np.count_nonzero(score > -np.inf)].tolist():
        g = group_of[jobs[option]]
        if len(model.groups[g]) > 1:
            _place(model, score, room, found, g, done)
        elif g not in done and room.fits(option):
            done.add(g)
            room.take(option)
            found[jobs[option]] = option
    return found


def _place(model: Model, score: np.ndarray, room: Room, found: np.ndarray, g: int, done: set[int]) -> None:
    """Places all members of a gang, or none; large ones first, since small ones fit in what is left."""
    if g in done:
        return
    done.add(g)
    placed: dict[int, int] = {}
    sizes = {j: int(model.options.taken[model.by_job[j]].max(initial=0)) for j in model.groups[g]}
    for j in sorted(model.groups[g], key=lambda j: (-sizes[j], j)):
        mine = model.by_job[j]
        fitting = [
            o for o in mine[np.argsort(-score[mine], kind="stable")].tolist() if score[o] > -np.inf and room.fits(o)
        ]
        if not fitting:
            for option in placed.values():
                room.take(option, -1)
            return
        placed[j] = fitting[0]
        room.take(fitting[0])
    for j, option in placed.items():
        found[j] = option
