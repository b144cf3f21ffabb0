# SPDX-License-Identifier: Apache-2.0
"""Random clusters and jobs, and checks of placements that share no code with the scheduler."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from dovetail.launch.schedule import Cluster, Decision, Demand, Pool, Team

NAMES = ("a", "b", "c")


@st.composite
def pools(draw: st.DrawFn) -> tuple[Pool, ...]:
    """Draws one to three pools of few chips."""
    found = []
    for name in NAMES[: draw(st.integers(1, 3))]:
        block, blocks = draw(st.sampled_from([1, 2, 4, 6, 8])), draw(st.integers(0, 4))
        price = draw(st.sampled_from([1.0, 2.0, 5.0]))
        spares = draw(st.sampled_from([0, 0, 1]))
        found.append(Pool(name=name, count=block * blocks, block=block, spares=spares, price=price))
    return tuple(found)


@st.composite
def teams(draw: st.DrawFn, where: Sequence[Pool]) -> tuple[Team, ...]:
    """Draws a tree of teams, or none."""
    names = [pool.name for pool in where]
    quota = st.none() | st.dictionaries(st.sampled_from(names), st.integers(0, 16))
    found = []
    for i, name in enumerate(("x", "y", "z")[: draw(st.integers(0, 3))]):
        parent = draw(st.sampled_from(["", *("x", "y", "z")[:i]]))
        found.append(Team(name=name, parent=parent, quota=draw(quota), borrow=draw(st.none() | st.integers(0, 4))))
    return tuple(found)


@st.composite
def demands(draw: st.DrawFn, where: Sequence[Pool], who: Sequence[Team], most: int = 7) -> list[Demand]:
    """Draws jobs."""
    found = []
    names = [pool.name for pool in where]
    at = st.tuples(st.sampled_from(names), st.sampled_from([1, 2, 3, 4, 8, 16]))
    for i in range(draw(st.integers(1, most))):
        rates = draw(st.dictionaries(at, st.sampled_from([0.5, 1.0, 1.5, 3.0]), min_size=1, max_size=5))
        job = Demand(
            name=f"j{i}",
            rates=rates,
            remaining=draw(st.sampled_from([100.0, 5_000.0, 200_000.0])),
            team=draw(st.sampled_from(["", *(team.name for team in who)])),
            priority=draw(st.sampled_from([0.5, 1.0, 1.0, 4.0])),
            deadline=draw(st.none() | st.sampled_from([600.0, 90_000.0])),
            gang=draw(st.sampled_from(["", "", "", "g", "h"])),
            spares=draw(st.sampled_from([0, 0, 0, 1])),
            waited=draw(st.sampled_from([0.0, 600.0, 200_000.0])),
            ran=draw(st.sampled_from([0.0, 7_200.0])),
            at=draw(st.none() | st.sampled_from(sorted(rates))),
        )
        found.append(job)
    return found


@st.composite
def situations(draw: st.DrawFn, *, with_teams: bool = True, most: int = 7) -> tuple[Cluster, list[Demand]]:
    """Draws all that a decision is made of."""
    where = draw(pools())
    who = draw(teams(where)) if with_teams else ()
    return Cluster(where, who), draw(demands(where, who, most))


def packed(pool: Pool, taken: Sequence[int]) -> bool:
    """Whether jobs can be laid into the blocks of a pool, spares left out: large ones first, each part in one block."""
    blocks = [pool.block] * (pool.count // pool.block)
    for chips in sorted(taken, reverse=True):
        whole, part = divmod(chips, pool.block)
        for size in [pool.block] * whole + [part] * bool(part):
            at = next((i for i, free in enumerate(blocks) if free >= size), None)
            if at is None:
                return False
            blocks[at] -= size
    return not taken or sum(free == pool.block for free in blocks) >= pool.spares


def used(decision: Decision, jobs: Sequence[Demand], who: Sequence[Team]) -> Mapping[tuple[str, str], int]:
    """Returns the chips of each team, with those of the teams below it, by pool."""
    parent, team_of = {team.name: team.parent for team in who}, {job.name: job.team for job in jobs}
    found: dict[tuple[str, str], int] = defaultdict(int)
    for each in decision.placements:
        team = team_of[each.job]
        while team:
            found[team, each.pool] += each.taken
            team = parent[team]
    return found
