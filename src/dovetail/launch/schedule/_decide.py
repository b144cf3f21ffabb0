# SPDX-License-Identifier: Apache-2.0
"""A decision: who has which chips until the next one. It is a function of its inputs, in whatever order they come."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dovetail.config import ConfigError

from ._demand import Cluster, Demand, Options, Settings, options_of
from ._greedy import Room, greedy
from ._model import Limit, Model, Prices, best, counted_by, model_of, relaxed
from ._objective import values

_OWED = 3.0  # A job that has waited for too long may wait for so many seconds for each that it runs.
_HOLD = 10  # Rounds that it runs then, at least.


class Placement(NamedTuple):
    """The chips of a job."""

    job: str
    pool: str
    chips: int  # That it computes with.
    taken: int  # That it occupies: with its spares, and what is left of blocks.
    shape: str  # How they lie in the pool.
    rate: float  # Steps a second, as far as is known.
    seconds: float  # Until it is done, if it stays so.


class Action(NamedTuple):
    """What an engine does for a job."""

    job: str
    action: Literal["start", "stop", "move", "keep"]
    pool: str  # Where it is then; of a job that stops, where it was.
    chips: int
    shape: str
    why: str


class Decision(NamedTuple):
    """Who has which chips until the next decision."""

    placements: tuple[Placement, ...]  # In the order of names.
    actions: tuple[Action, ...]  # Those that free chips first.
    waiting: tuple[str, ...]
    prices: Mapping[str, float]  # Of each pool: what one more chip would add to the value.
    value: float  # Of all placements, by the objective.
    bound: float  # No placement is worth more.
    method: Literal["exact", "greedy"]
    solved: "Solved"  # For those who ask further.

    def placed(self) -> dict[str, tuple[str, int]]:
        """Returns the pool and the chips of each job that runs."""
        return {each.job: (each.pool, each.chips) for each in self.placements}

    def to_json(self) -> dict[str, Any]:
        """Returns the decision as JSON has it: what engines need."""
        return {
            "method": self.method,
            "value": self.value,
            "bound": self.bound,
            "prices": dict(self.prices),
            "placements": [each._asdict() for each in self.placements],
            "actions": [each._asdict() for each in self.actions],
        }


class Solved(NamedTuple):
    """How a decision came about."""

    model: Model
    settings: Settings
    value: np.ndarray  # Of each option.
    chosen: np.ndarray  # The option of each job, -1 for none.
    prices: Prices
    must: Sequence[int]  # Jobs that have waited for too long.
    owners: Sequence[int]  # Jobs that run on what is their team's.


def decide(cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> Decision:
    """Returns the best placement of jobs, or a good one if there are more than `settings.exact`."""
    jobs, cluster = _in_order(jobs), Cluster(*map(_in_order, cluster))
    for one, other in itertools.pairwise(jobs):
        if one.name == other.name:
            raise ConfigError(f"job {one.name!r} is there twice.\n  Give each job a name of its own.")
    options, value = _valued(cluster, jobs, settings)
    model = model_of(cluster, jobs, options)
    must = _overdue(model, value, settings)
    own = _own(model, value, settings, must)
    owners = [j for j in np.flatnonzero(own >= 0).tolist() if j not in must]
    taken, prices, bound, method = _solved(model, value, settings, [*must, *owners], own)
    _fill(model, value, taken)
    return _decision(Solved(model, settings, value, taken, prices, must, owners), bound, method)


def placed_greedily(cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> float:
    """Returns the value of the densest first: what a decision is compared with."""
    jobs, cluster = _in_order(jobs), Cluster(*map(_in_order, cluster))
    options, value = _valued(cluster, jobs, settings)
    return worth(value, greedy(model_of(cluster, jobs, options), value / options.taken))


def _valued(cluster: Cluster, jobs: Sequence[Demand], settings: Settings) -> tuple[Options, np.ndarray]:
    """Returns the options that may be taken, and what each is worth."""
    options = options_of(cluster, jobs, settings)
    value = values(cluster, jobs, options, settings)
    return Options(*(column[value > 0] for column in options)), value[value > 0]


def worth(value: np.ndarray, taken: np.ndarray) -> float:
    """Returns the value of the options that jobs have."""
    return float(value[taken[taken >= 0]].sum())


def _overdue(model: Model, value: np.ndarray, settings: Settings) -> list[int]:
    """Returns jobs that have to run, since they have waited for too long, as many as fit; those owed most come first.

    A job that starts for that reason stays for some rounds. The first of them always fits: it would alone.
    """
    hold = _HOLD * settings.round
    owed = [
        job.waited - settings.patience - _OWED * max(0.0, job.ran - (hold if job.at else 0.0)) for job in model.jobs
    ]
    groups = [(max(owed[j] for j in group), group) for group in model.groups]
    first = [j for most, group in sorted(groups, key=lambda each: -each[0]) if most >= 0 for j in group]
    if not first:
        return []
    taken = greedy(model, value / model.options.taken, first)
    found = [j for j in first if taken[j] >= 0]
    group = next(group for group in model.groups if first[0] in group)
    if first[0] not in found and (exact := best(model, value, group)) is not None and exact[first[0]] >= 0:
        return list(group)  # A gang that is hard to place.
    return found


def _own(model: Model, value: np.ndarray, settings: Settings, must: Sequence[int]) -> np.ndarray:
    """Returns the options of jobs if nobody borrows: those jobs run, whatever others would do with their chips."""
    if not any(limit.chips > limit.owns for limit in model.limits):
        return np.full(len(model.jobs), -1)
    quotas, overdue = {limit.team for limit in model.limits}, frozenset(must)
    own = [limit._replace(chips=limit.owns, free=overdue) for limit in model.limits]
    strict = model._replace(limits=[*model.limits, *own])
    may = np.array([bool(teams & quotas) or j in overdue for j, teams in enumerate(model.inside)])
    allowed = np.where(may[model.options.job], value, -1.0) if len(value) else value
    return _solved(strict, allowed, settings, must)[0]


def _solved(
    model: Model, value: np.ndarray, settings: Settings, must: Sequence[int], start: np.ndarray | None = None
) -> tuple[np.ndarray, Prices, float, Literal["exact", "greedy"]]:
    """Returns the option of each job, prices, a bound, and how they were found; `start` has all that must run."""
    share, prices = relaxed(model, np.maximum(value, 0.0))
    bound = float(share @ np.maximum(value, 0.0)) if len(value) else 0.0
    options, no = model.options, value < 0
    paid = prices.chips[options.pool] * options.taken if len(value) else value
    for i, limit in enumerate(model.limits):
        if prices.limits[i] > 0:
            paid = paid + prices.limits[i] * (options.taken * _counts(model, limit))
    scores = [value / np.maximum(options.taken, 1), value - paid, share + 1e-3 * (value - paid)]
    tries = [greedy(model, np.where(no, -np.inf, score), must) for score in scores]
    if start is not None and must:
        tries.append(greedy(model, np.where(no, -np.inf, scores[-1]), must, start))
    method: Literal["exact", "greedy"] = "greedy"
    if len(model.jobs) <= settings.exact:
        exact = best(model, value, must)
        tries, method = [*([exact] if exact is not None else []), *tries], "exact"
    whole = [taken for taken in tries if all(taken[j] >= 0 for j in must)] or tries[:1]
    return max(whole, key=lambda taken: round(worth(value, taken), 9)), prices, bound, method


def _fill(model: Model, value: np.ndarray, taken: np.ndarray) -> None:
    """Starts who can have idle chips: the solver stops a little short of the best, where they may be left."""
    room = Room(model)
    for option in taken[taken >= 0].tolist():
        room.take(option)
    alone = {group[0] for group in model.groups if len(group) == 1}
    for option in np.lexsort((np.arange(len(value)), -value)).tolist():
        job = int(model.options.job[option])
        if taken[job] < 0 and job in alone and room.fits(option):
            room.take(option)
            taken[job] = option


def _in_order(named: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(named, key=lambda each: each.name))


def _counts(model: Model, limit: Limit) -> np.ndarray:
    found = np.zeros(len(model.options.job))
    found[counted_by(model, limit)] = 1.0
    return found


def _why(solved: Solved, option: int) -> str:
    """Returns why a job has what it has."""
    model, options = solved.model, solved.model.options
    job = int(options.job[option])
    fastest = max(model.by_job[job].tolist(), key=lambda o: (options.rate[o], -o))
    said = []
    if job in solved.must:
        said.append("it has waited for too long")
    elif job in solved.owners:
        said.append("by the quota of its team")
    if options.rate[option] >= options.rate[fastest]:
        said.append("where it is fastest")
    else:
        share = options.rate[option] / options.rate[fastest]
        pool = model.cluster.pools[options.pool[fastest]].name
        but = "dearer" if solved.settings.objective == "cost" else "worth more to others"
        said.append(f"{share:.0%} of its speed on {options.chips[fastest]} of {pool}, which are {but}")
    return ", ".join(said)


def _decision(solved: Solved, bound: float, method: Literal["exact", "greedy"]) -> Decision:
    model, options = solved.model, solved.model.options
    pools, placements, actions = model.cluster.pools, list[Placement](), list[Action]()
    for job, option in zip(model.jobs, solved.chosen.tolist(), strict=True):
        if option < 0:
            if job.at is not None:
                pool, chips = job.at
                actions.append(Action(job.name, "stop", pool, chips, "", "its chips are worth more to others"))
            continue
        pool, chips, rate = pools[options.pool[option]], int(options.chips[option]), float(options.rate[option])
        taken, seconds = int(options.taken[option]), float(options.restart[option] + job.remaining / rate)
        shape = pool.shape(chips + job.spares)
        placements.append(Placement(job.name, pool.name, chips, taken, shape, rate, seconds))
        what = "start" if job.at is None else "keep" if job.at == (pool.name, chips) else "move"
        actions.append(Action(job.name, what, pool.name, chips, shape, _why(solved, option)))
    order = ("stop", "move", "start", "keep")
    running = {each.job for each in placements}
    return Decision(
        placements=tuple(placements),
        actions=tuple(sorted(actions, key=lambda each: (order.index(each.action), each.job))),
        waiting=tuple(job.name for job in model.jobs if job.name not in running),
        prices={pool.name: float(price) for pool, price in zip(pools, solved.prices.chips, strict=True)},
        value=worth(solved.value, solved.chosen),
        bound=bound,
        method=method,
        solved=solved,
    )
