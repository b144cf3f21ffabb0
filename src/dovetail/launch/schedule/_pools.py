# SPDX-License-Identifier: Apache-2.0
"""Pools and teams: the chips that jobs share, in blocks, and what part of them is whose."""

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

from dovetail.config import REQUIRED, ConfigBase, ConfigError, did_you_mean
from dovetail.hardware import CHIPS


class Pool(ConfigBase):
    """Chips of one kind, in blocks that fast links join: hosts, NVLink domains, cubes of a torus."""

    name: str = REQUIRED
    count: int = REQUIRED  # Chips. 0: there are none now.
    hardware: str = ""  # The chip, as in `tpu-v5p`; "": its name. Needed where a job names a recipe.
    block: int = 1  # Chips of a block. A job gets whole blocks, or shares one.
    spares: int = 0  # Blocks that stay free, for those that fail.
    shapes: Sequence[int] = ()  # How many chips a job can have; empty: any number.
    price: float | None = None  # US dollars an hour for each chip; None: that of the hardware catalogue.
    price_date: str | None = None  # When that was the price: prices change.
    kind: Literal["reserved", "on-demand", "spot"] = "on-demand"
    interruptions: float | None = None  # For each chip and hour. None: as published; spot has to say.
    checkpoint_seconds: float = 5.0  # That steps wait for a checkpoint.
    recovery_seconds: float | None = None  # From a stop until steps are made again. None: `--restart`.
    via: str = ""  # The engine that has it, for `--execute`: slurm, kubernetes.
    launch: Sequence[str] = ()  # What that is told, as after `launch.`: ["partition=large", "constraint=h100"].

    @property
    def blocks(self) -> int:
        """Blocks that jobs can have."""
        return max(0, self.count // self.block - self.spares)

    @property
    def chip_hour(self) -> float:
        """US dollars an hour for a chip; 0 where no price is known."""
        chip = CHIPS.get(self.hardware or self.name)
        return self.price if self.price is not None else (chip.price if chip else None) or 0.0

    def occupies(self, chips: int) -> int:
        """Returns how many chips a job takes that asks for so many.

        More than a block are whole blocks. Parts of a block are sizes of which each divides the next, so that jobs fill
        a block whenever their sum does.

        >>> [Pool(name="a", count=72, block=72).occupies(n) for n in (1, 2, 4, 10, 36, 73)]
        [1, 3, 9, 18, 36, 144]
        """
        return _occupied(chips, self.block)

    def shape(self, chips: int) -> str:
        """Returns how so many chips lie in the pool.

        >>> [Pool(name="a", count=64, block=8).shape(n) for n in (4, 16)]
        ['4 of a block of 8', '2 blocks of 8']
        """
        taken = self.occupies(chips)
        if taken < self.block:
            return f"{taken} of a block of {self.block}"
        blocks = taken // self.block
        return (
            f"{blocks} chip{'s' * (blocks > 1)}"
            if self.block == 1
            else f"{blocks} block{'s' * (blocks > 1)} of {self.block}"
        )

    def check(self) -> None:
        """Raises if a value makes no sense."""
        if self.hardware and self.hardware not in CHIPS:
            hint = did_you_mean(self.hardware, CHIPS)
            raise ConfigError(f"there is no chip {self.hardware!r}.{hint} There are: {', '.join(CHIPS)}.")
        for field, least in (("count", 0), ("block", 1), ("spares", 0)):
            if getattr(self, field) < least:
                raise ConfigError(f"{field} is {getattr(self, field)}, expected at least {least}.")
        if self.count % self.block:
            near = self.count - self.count % self.block
            raise ConfigError(
                f"count ({self.count}) must be a multiple of block ({self.block}): a block is whole.\n"
                f"  Use count = {near} or {near + self.block}, or another block."
            )
        for size in self.shapes:
            if size < 1 or (self.count and size > self.count):
                raise ConfigError(f"shapes has {size}, expected numbers of chips from 1 to count ({self.count}).")
        for field in ("price", "interruptions", "checkpoint_seconds", "recovery_seconds"):
            value = getattr(self, field)
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"{field} is {value}, expected a number of at least 0.")
        if self.kind == "spot" and self.interruptions is None:
            raise ConfigError(
                "it is spot, and nothing says how often chips are taken away.\n"
                "  Add interruptions = ... for each chip and hour, as in 1e-4."
            )


class Team(ConfigBase):
    """Who jobs belong to, and how many chips of each pool are theirs."""

    name: str = REQUIRED
    parent: str = ""  # A team whose chips its members share.
    quota: Mapping[str, int] | None = None  # Chips of each pool; of others none. None: that of its parent.
    borrow: int | None = None  # How many chips of a pool it may have beyond its quota. None: all that are idle.

    def check(self, pools: Mapping[str, Pool], teams: Mapping[str, "Team"]) -> None:
        """Raises if a value makes no sense."""
        for pool, chips in (self.quota or {}).items():
            if pool not in pools:
                raise ConfigError(f"quota: there is no pool {pool!r}.{did_you_mean(pool, pools)} {_named(pools)}")
            if chips < 0:
                raise ConfigError(f"quota of {pool} is {chips}, expected at least 0 chips.")
        if self.borrow is not None and self.borrow < 0:
            raise ConfigError(f"borrow is {self.borrow}, expected at least 0 chips.")
        if self.parent and self.parent not in teams:
            raise ConfigError(f"parent: there is no team {self.parent!r}.{did_you_mean(self.parent, teams)}")
        above = ancestors(self.name, teams)
        if teams[above[-1]].parent:
            raise ConfigError(
                f"its quota comes from itself: {' -> '.join([*above, teams[above[-1]].parent])}.\n"
                "  Remove `parent` from one of them: teams must form a tree."
            )


def ancestors(name: str, teams: Mapping[str, Team]) -> list[str]:
    """Returns a team and those above it, up to the first that has no parent or is met again."""
    found = [name]
    while (above := teams[found[-1]].parent) and above not in found:
        found.append(above)
    return found


def _named(pools: Mapping[str, Pool]) -> str:
    return f"There are: {', '.join(pools)}."


@functools.cache
def _occupied(chips: int, block: int) -> int:
    if chips >= block:
        return -(-chips // block) * block
    return min(size for size in _parts(block) if size >= chips)


@functools.cache
def _parts(block: int) -> Sequence[int]:
    """Returns sizes that each divide the next, from the block down to one chip.

    >>> _parts(72)
    [72, 36, 18, 9, 3, 1]
    """
    sizes = [block]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // next(n for n in range(2, sizes[-1] + 1) if sizes[-1] % n == 0))
    return sizes
