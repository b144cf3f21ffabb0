# SPDX-License-Identifier: Apache-2.0
"""Why a job waits, and the changes that would start it, the cheapest first."""

from typing import NamedTuple

from ._changes import Change, Trials, changes_for
from ._decide import Decision, Solved
from ._greedy import Room


class Waiting(NamedTuple):
    """A job that does not run."""

    job: str
    reason: str
    until: float | None  # Seconds until chips may be free; None if that is not known.
    changes: tuple[Change, ...]  # The cheapest first.


def explain(decision: Decision) -> list[Waiting]:
    """Returns why each job waits."""
    solved = decision.solved
    room = Room(solved.model)
    for option in solved.chosen[solved.chosen >= 0].tolist():
        room.take(option)
    index = {job.name: j for j, job in enumerate(solved.model.jobs)}
    trials = Trials(decision)
    return [_explained(decision, room, trials, index[name]) for name in decision.waiting]


def _explained(decision: Decision, room: Room, trials: Trials, j: int) -> Waiting:
    solved = decision.solved
    model, job = solved.model, solved.model.jobs[j]
    mine = model.by_job[j].tolist()
    if not mine:
        nowhere = (
            "no pool has chips for it" if solved.settings.objective != "cost" else "no pool is cheap enough for it"
        )
        return Waiting(job.name, nowhere, None, ())
    wanted = max(mine, key=lambda o: (solved.value[o], -o))
    pool = model.cluster.pools[model.options.pool[wanted]]
    until = _until(decision, room, wanted)
    reason = _reason(decision, room, wanted, pool.name, until)
    return Waiting(job.name, reason, until, tuple(changes_for(solved, room, trials, j)))


def _reason(decision: Decision, room: Room, option: int, pool: str, until: float | None) -> str:
    """Returns why an option is not taken, the one that is worth most to the job."""
    solved = decision.solved
    model = solved.model
    taken, job = int(model.options.taken[option]), model.jobs[model.options.job[option]]
    when = "" if until is None else f" until about {_time(until)} from now"
    over = [i for i in room.limits(option) if room.left(i) < taken]
    if over:
        limit = model.limits[over[0]]
        has = limit.chips - room.left(over[0])
        most = f"{limit.owns} of {pool} are its quota" + (
            f", and it may borrow {limit.chips - limit.owns:g}" if limit.chips > limit.owns else ""
        )
        return f"team {limit.team} has {has:g} chips of {pool}, and {taken} more are over what it may have: {most}"
    if room.blocks_missing(option) <= 0:
        mates = [other for other in model.jobs if other.gang == job.gang and other.name != job.name]
        if job.gang and mates:
            return f"its gang {job.gang} runs together or not at all, and not all of it fits"
        return f"{taken} chips of {pool} are free, but a start now is worth less than it costs"
    lent = _borrowed(solved, option)
    if lent:
        names = ", ".join(lent[:3])
        return f"{pool} quota of team {job.team} is lent to {names}{when}"
    holders = [each for each in decision.placements if each.pool == pool]
    price, value = solved.prices.chips[model.options.pool[option]] * taken, solved.value[option]
    worthy = f"its value is {value:.3g}, and {taken} chips there cost {price:.3g}" if price > 0 else "no room"
    return f"{pool} is held by {len(holders)} job{'s' * (len(holders) != 1)} that are worth more{when}: {worthy}"


def _borrowed(solved: Solved, option: int) -> list[str]:
    """Returns jobs of others that borrow in the pool of an option whose team has quota left there."""
    model, pool = solved.model, int(solved.model.options.pool[option])
    inside = model.inside[int(model.options.job[option])]
    use: dict[str, float] = {}
    for o in solved.chosen[solved.chosen >= 0].tolist():
        if model.options.pool[o] == pool:
            for team in model.inside[int(model.options.job[o])]:
                use[team] = use.get(team, 0.0) + float(model.options.taken[o])
    owns = {limit.team: limit.owns for limit in model.limits if limit.pool == pool}
    if not any(team in owns and use.get(team, 0.0) < owns[team] for team in inside):
        return []
    found = []
    for j, o in enumerate(solved.chosen.tolist()):
        teams = model.inside[j]
        if o < 0 or model.options.pool[o] != pool or teams & inside:
            continue
        if not teams & owns.keys() or any(use[team] > owns[team] for team in teams if team in owns):
            found.append(model.jobs[j].name)
    return found


def _until(decision: Decision, room: Room, option: int) -> float | None:
    """Returns when enough chips of the pool are free, if nothing else starts: jobs end as far as is known."""
    model = decision.solved.model
    pool = model.cluster.pools[model.options.pool[option]]
    missing = max(0, room.blocks_missing(option)) * pool.block
    freed = 0
    for each in sorted((one for one in decision.placements if one.pool == pool.name), key=lambda one: one.seconds):
        freed += each.taken
        if freed >= missing > 0:
            return each.seconds
    return None


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
