# SPDX-License-Identifier: Apache-2.0
"""Decisions and simulations in print: who runs where, what chips are worth, why the others wait."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._table import short, table

if TYPE_CHECKING:
    from dovetail.launch.schedule import Cluster, Decision, Outcome, Settings, Waiting

_HOUR = 3600.0


def decision_json(cluster: "Cluster", settings: "Settings", decision: "Decision", waiting: "Sequence[Waiting]") -> str:
    """Returns a decision as JSON: placements, actions, prices, and of each waiting job why and what would start it."""
    figures = {
        "objective": settings.objective,
        **decision.to_json(),
        "waiting": [{**each._asdict(), "changes": [one._asdict() for one in each.changes]} for each in waiting],
        "pools": {
            pool.name: {"chips": pool.count, "for_jobs": pool.blocks * pool.block, "taken": _taken(decision, pool.name)}
            for pool in cluster.pools
        },
    }
    return json.dumps(figures, indent=2)


def decision_text(cluster: "Cluster", settings: "Settings", decision: "Decision", waiting: "Sequence[Waiting]") -> str:
    """Returns a decision as tables."""
    runs = {each.job: each for each in decision.placements}
    rows = []
    for each in decision.actions:
        place = runs.get(each.job)
        hours = "-" if place is None else f"{place.seconds / _HOUR:.1f}"
        rate = "-" if place is None else f"{place.rate:.3g}"
        rows.append((each.action, each.job, each.pool, each.chips, each.shape, rate, hours, each.why))
    how = "the best placement" if decision.method == "exact" else "a placement by prices"
    share = decision.value / decision.bound if decision.bound > 0 else 1.0
    lines = [
        f"by {settings.objective}: {how}, {share:.1%} of what no placement can exceed; "
        f"running: {len(runs)}, waiting: {len(waiting)}",
        "",
        table(("", "job", "pool", "chips", "shape", "steps/s", "h left", "why"), rows),
        "",
        table(
            ("pool", "chips", "taken", "US$/h", "worth of a chip"),
            [_pool_row(pool, decision) for pool in cluster.pools],
        ),
    ]
    for each in waiting:
        lines += ["", f"{each.job} waits: {each.reason}"]
        lines += [f"  {_label(i, one.checked)}: {one.text}" for i, one in enumerate(each.changes)]
        lines += ["  no single change that was tried would start it"] if not each.changes else []
    return "\n".join(
        [*lines, "", "worth of a chip: what one more would add to the value of all, 1 being the best job's."]
    )


def _label(place: int, checked: bool) -> str:
    return ("or" if place else "cheapest change") if checked else "may start it"


def _pool_row(pool: Any, decision: "Decision") -> tuple[Any, ...]:
    price = f"{pool.chip_hour:.2f}" if pool.chip_hour else "-"
    return pool.name, pool.count, _taken(decision, pool.name), price, f"{decision.prices[pool.name]:.4f}"


def _taken(decision: "Decision", pool: str) -> int:
    return sum(each.taken for each in decision.placements if each.pool == pool)


_HEAD = ("policy", "mean, h", "median, h", "p99, h", "waiting, h", "last end, h", "restarts", "used", "chips, $")


def outcomes_text(cluster: "Cluster", settings: "Settings", found: "Mapping[str, Mapping[str, Outcome]]") -> str:
    """Returns what policies made of traces, as tables."""
    chips = ", ".join(f"{pool.count:,} {pool.name}" for pool in cluster.pools)
    parts = [f"{chips}; rounds of {settings.round:g} s, {settings.restart:g} s for a restart"]
    for name, outcomes in found.items():
        jobs = next(iter(outcomes.values())).jobs
        parts += ["", f"{name}: {jobs:,} jobs", "", table(_HEAD, [_row(*each) for each in outcomes.items()])]
        if more := _increase(outcomes):
            parts += ["", more]
    return "\n".join(
        [*parts, "", "mean, median, p99: from arrival to end. restarts: of a job, beyond its first start."]
    )


def _row(name: str, each: "Outcome") -> tuple[str, ...]:
    hours = (each.mean, each.median, each.p99, each.waited, each.makespan)
    cost = short(each.dollars) if each.dollars else "-"
    return name, *(f"{value / _HOUR:.2f}" for value in hours), f"{each.restarts:.2f}", f"{each.utilisation:.3f}", cost


def _increase(outcomes: "Mapping[str, Outcome]") -> str:
    """Returns what wrong rates cost, on average."""
    wrong = [each for name, each in outcomes.items() if ", seed " in name]
    if not wrong:
        return ""
    right = next(each for name, each in outcomes.items() if name.startswith("dovetail") and ", seed " not in name)
    mean = sum(each.mean for each in wrong) / len(wrong) / right.mean - 1
    last = sum(each.makespan for each in wrong) / len(wrong) / right.makespan - 1
    return f"wrong rates cost, on average over {len(wrong)} seeds: {mean:+.1%} of the mean, {last:+.1%} of the last end"


def outcomes_json(cluster: "Cluster", settings: "Settings", found: "Mapping[str, Mapping[str, Outcome]]") -> str:
    """Returns what policies made of traces, as JSON; times are seconds."""
    figures = {
        "pools": {pool.name: pool.count for pool in cluster.pools},
        **{key: value for key, value in settings._asdict().items() if key in ("objective", "round", "restart")},
        "traces": {
            name: {
                policy: {key: value for key, value in each._asdict().items() if key not in ("ends", "line")}
                for policy, each in outcomes.items()
            }
            for name, outcomes in found.items()
        },
    }
    assert all(math.isfinite(each.mean) for outcomes in found.values() for each in outcomes.values())
    return json.dumps(figures, indent=2)
