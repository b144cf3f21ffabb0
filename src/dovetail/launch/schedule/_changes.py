# SPDX-License-Identifier: Apache-2.0
"""Changes that would start a job that waits: what they are, what they cost, and whether it runs with them."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from ._decide import Decision, Solved, decide
from ._demand import Cluster, Demand
from ._greedy import Room

_TRIED = 3  # Of each kind, for a job.
_DECISIONS = 2000  # That are made to try changes, times jobs: each takes the longer the more there are.
_UP = 2.0  # From one priority, or number of chips, that is tried to the next.


class Change(NamedTuple):
    """Something that starts a job."""

    kind: Literal["size", "quota", "priority", "chips"]
    text: str
    dollars_per_hour: float  # For chips that are added, or taken from jobs that stop.
    pool: str
    chips: int  # That are added, or that it would run on.
    team: str = ""  # Whose quota is raised,
    quota: int = 0  # by so many chips.
    priority: float | None = None
    stops: tuple[str, ...] = ()  # Jobs.
    checked: bool = False  # Whether a decision with it was made, and the job ran.


class Trials:
    """Tries changes by making decisions with them, as many as there is time for."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self.left = _DECISIONS // max(1, len(decision.solved.model.jobs)) if decision.method == "exact" else 0

    def confirmed(self, job: str, change: Change) -> Change | None:
        """Returns a change with what it does to others; None if the job does not run with it, or time is up."""
        if not self.left:
            return None
        self.left -= 1
        solved = self._decision.solved
        cluster, jobs = changed(solved.model.cluster, solved.model.jobs, job, change)
        after = decide(cluster, jobs, solved.settings).placed()
        if job not in after:
            return None
        price = {pool.name: pool.chip_hour for pool in cluster.pools}
        stopped = [each for each in self._decision.placements if each.job not in after]
        names, who = tuple(each.job for each in stopped), ""
        if names:
            who = f"; {', '.join(names[:3])}{' and others' * (len(names) > 3)} would stop"
        cost = change.dollars_per_hour + sum(each.taken * price[each.pool] for each in stopped)
        return change._replace(text=change.text + who, dollars_per_hour=cost, stops=names, checked=True)


def changed(cluster: Cluster, jobs: Sequence[Demand], job: str, change: Change) -> tuple[Cluster, list[Demand]]:
    """Returns what a decision is made from, with a change for a job."""
    pools, teams, at = list(cluster.pools), list(cluster.teams), [each.name for each in jobs].index(job)
    jobs = list(jobs)
    if change.kind == "chips":
        pools = [pool.set(count=pool.count + change.chips) if pool.name == change.pool else pool for pool in pools]
    for i, team in enumerate(teams):
        if change.quota and team.name == change.team:
            quota = dict(team.quota or {})
            teams[i] = team.set(quota={**quota, change.pool: quota.get(change.pool, 0) + change.quota})
    if change.kind == "priority" and change.priority is not None:
        jobs[at] = jobs[at]._replace(priority=change.priority)
    elif change.kind == "size":
        near = max((chips, rate) for (pool, chips), rate in jobs[at].rates.items() if pool == change.pool)
        rate = near[1] * change.chips / near[0]
        jobs[at] = jobs[at]._replace(rates={**jobs[at].rates, (change.pool, change.chips): rate})
    return Cluster(tuple(pools), tuple(teams)), jobs


def changes_for(solved: Solved, room: Room, trials: Trials, j: int) -> list[Change]:
    """Returns changes that start a job, the cheapest first; where none was confirmed, those that may."""
    mine, name = solved.model.by_job[j].tolist(), solved.model.jobs[j].name
    simple = _sorted([change for option in mine for change in _simple(solved, room, option)])
    priorities, found = _priorities(solved, mine), list[Change]()
    free = [change for change in simple if change.kind in ("size", "quota")]
    chips = [change for change in simple if change.kind == "chips"]
    for some in (free, priorities, chips):
        tried = (trials.confirmed(name, change) for change in some[:_TRIED])
        found += [change for change in [next((one for one in tried if one), None)] if change]
    return _sorted(found) if found else _sorted([*free[:1], *priorities[:1], *chips[:1]])


def _sorted(changes: Sequence[Change]) -> list[Change]:
    order = ("size", "quota", "priority", "chips")
    return sorted(set(changes), key=lambda each: (each.dollars_per_hour, order.index(each.kind), each.chips, each.pool))


def _simple(solved: Solved, room: Room, option: int) -> Iterator[Change]:
    """Yields what would start an option with nobody else stopping, if nobody else used it."""
    model = solved.model
    pool, taken = model.cluster.pools[model.options.pool[option]], int(model.options.taken[option])
    job, chips = model.jobs[model.options.job[option]], int(model.options.chips[option])
    missing, over = max(0, room.blocks_missing(option)), max(0.0, room.chips_over(option))
    more, team = "", ""
    if over:
        team = model.limits[next(i for i in room.limits(option) if room.left(i) < taken)].team
        more = f"raise the quota of team {team} in {pool.name} by {over:g} chips"
    if missing:
        for blocks in (missing, int(missing * _UP)):  # Others may want them, too.
            added = blocks * pool.block
            cost = added * pool.chip_hour
            text = f"add {added} chips to {pool.name}" + (f", for {cost:,.2f} US dollars an hour" if cost else "")
            both = f"{more}, and {text}" if more else text
            yield Change("chips", both, cost, pool.name, added, team=team, quota=int(over))
        free = room.free(int(model.options.pool[option])) * pool.block
        fewer = [n for n in (chips // 2, chips // 4) if n > 0 and pool.occupies(n + job.spares) <= free]
        if fewer and (not pool.shapes or fewer[0] in pool.shapes):
            text = f"let it run on {fewer[0]} chips of {pool.name}, which are free"
            yield Change("size", text, 0.0, pool.name, fewer[0])
    elif over:
        yield Change("quota", f"{more}, which are free", 0.0, pool.name, chips, team=team, quota=int(over))


def _priorities(solved: Solved, mine: Sequence[int]) -> list[Change]:
    """Returns priorities to try: that from which the job would pay for its chips, by their prices, and higher ones."""
    model, options = solved.model, solved.model.options
    paid = {o: float(solved.prices.chips[options.pool[o]] * options.taken[o] / solved.value[o]) for o in mine}
    least = min(paid, key=lambda o: (paid[o], o))
    job, pool = model.jobs[options.job[least]], model.cluster.pools[options.pool[least]]
    found = []
    for power in range(_TRIED):
        priority = float(f"{job.priority * 1.1 * max(1.0, paid[least]) * _UP**power:.3g}")
        text = f"priority {priority:g} instead of {job.priority:g}"
        found.append(Change("priority", text, 0.0, pool.name, int(options.chips[least]), priority=priority))
    return found
