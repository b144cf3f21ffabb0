# SPDX-License-Identifier: Apache-2.0
"""`dovetail schedule JOBS POOLS`: which job gets which chips, why, and what would start those that wait."""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.config import ConfigError
from dovetail.progress import phase

from ._amounts import seconds
from ._resolve import resolve
from ._schedule_text import decision_json, decision_text, outcomes_json, outcomes_text

if TYPE_CHECKING:
    from dovetail.launch.schedule import Arrival, Cluster, Demand, JobSpec, Outcome, Pool, Predicted, Settings

_SEEDS = 5  # Of wrong rates.


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("jobs", metavar="JOBS", help="jobs and teams, a file of TOML; or jobs of traces, a CSV file")
    parser.add_argument("pools", metavar="POOLS", help="pools of chips, a file of TOML")
    parser.add_argument(
        "--objective",
        choices=("jct", "throughput", "fair", "cost", "makespan"),
        default="jct",
        help="what decisions are for; jct is the mean time until a job is done",
    )
    parser.add_argument("--rates", metavar="FILE.csv", help="measured steps a second, by pool, kind of job and chips")
    parser.add_argument("--round", default="6min", metavar="TIME", help="from one decision to the next, as in 6min")
    parser.add_argument("--restart", default="60s", metavar="TIME", help="what a start or a move takes, as in 60s")
    parser.add_argument(
        "--simulate",
        nargs="*",
        metavar="TRACE",
        help="let jobs arrive as they did, beside simple policies: those of these traces of JOBS, or all",
    )
    parser.add_argument(
        "--rate-error", type=float, metavar="PART", help="simulate with rates wrong by up to so much too, as in 0.3"
    )
    parser.add_argument("--execute", action="store_true", help="have the engines of the pools do it, in rounds")
    parser.add_argument("--rounds", type=int, metavar="N", help="of --execute: how many; by default until all are done")
    parser.set_defaults(run=_schedule)


def _schedule(args: argparse.Namespace) -> int:
    from dovetail.launch.schedule import (
        Cluster,
        Settings,
        decide,
        demands,
        explain,
        read_jobs,
        read_pools,
        read_rates,
        read_trace,
    )

    settings = Settings(args.objective, seconds(args.round, "--round"), seconds(args.restart, "--restart"))
    if args.rate_error is not None and (args.simulate is None or not 0 < args.rate_error < 1):
        raise ConfigError(f"--rate-error is {args.rate_error}, expected a part of 1 as in 0.3, and --simulate with it.")
    if args.execute:
        if args.simulate is not None:
            raise ConfigError("--execute and --simulate exclude each other.")
        from ._schedule_execute import execute

        return execute(args, settings, _predicted)
    if args.rounds is not None:
        raise ConfigError("--rounds counts the rounds of --execute, which is missing.")
    pools = read_pools(args.pools)
    rates = read_rates(args.rates, pools) if args.rates else {}
    if args.jobs.endswith(".csv"):
        if args.simulate is None or not args.rates:
            missing = "--simulate" if args.simulate is None else "--rates FILE.csv"
            raise ConfigError(f"JOBS {args.jobs} is a file of traces, and {missing} is missing.\n  Add it.")
        traces = read_trace(args.jobs, rates, pools, args.simulate)
        return _simulated(Cluster(pools), traces, settings, args)
    if args.simulate:
        raise ConfigError(f"--simulate {' '.join(args.simulate)}: JOBS {args.jobs} is no .csv file, and has no traces.")
    asked = read_jobs(args.jobs, pools)
    try:
        jobs = demands(asked.jobs, pools, rates, _predicted)
    except ConfigError as e:
        raise ConfigError(f"JOBS {args.jobs}: {e}") from e
    cluster = Cluster(pools, asked.teams)
    if args.simulate is not None:
        arrivals = _arrivals(asked.jobs, jobs)
        return _simulated(cluster, {args.jobs: arrivals}, settings, args)
    with phase(f"placing {len(jobs):,} jobs"):
        decision = decide(cluster, jobs, settings)
        waiting = explain(decision)
    print((decision_json if args.json else decision_text)(cluster, settings, decision, waiting))
    return 0


def _arrivals(specs: "Sequence[JobSpec]", jobs: "Sequence[Demand]") -> "list[Arrival]":
    from dovetail.launch.schedule import Arrival

    return [
        Arrival(job._replace(at=None), spec.arrival_seconds, spec.kind or spec.recipe)
        for spec, job in zip(specs, jobs, strict=True)
    ]


def _predicted(recipe: str, overrides: Sequence[str], sizes: "Sequence[tuple[Pool, int]]") -> "Predicted":
    """Predicts a recipe; JAX is imported only here."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Before JAX starts: it need not look for what is not there.
    cfg = resolve(recipe, overrides, weights=False).cfg
    from dovetail.launch.schedule.recipes import predicted

    return predicted(cfg, sizes)


def _simulated(
    cluster: "Cluster", traces: "dict[str, list[Arrival]]", settings: "Settings", args: argparse.Namespace
) -> int:
    from dovetail.launch.schedule import POLICIES, ours, simulate, wrong

    found: dict[str, dict[str, Outcome]] = {}
    for name, arrivals in traces.items():
        mine = found[name] = {}
        own = f"dovetail, {settings.objective}"
        for policy, make in {**POLICIES, own: lambda: ours}.items():
            with phase(f"{name}: {policy}"):
                mine[policy] = simulate(cluster, arrivals, settings, make())
        for seed in range(_SEEDS if args.rate_error else 0):
            with phase(f"{name}: wrong rates, seed {seed}"):
                believed = wrong(arrivals, args.rate_error, seed)
                policy = f"{own}, rates off by {args.rate_error:.0%}, seed {seed}"
                mine[policy] = simulate(cluster, arrivals, settings, ours, believed=believed)
    print((outcomes_json if args.json else outcomes_text)(cluster, settings, found))
    return 0
