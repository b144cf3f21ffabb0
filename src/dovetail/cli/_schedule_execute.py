# SPDX-License-Identifier: Apache-2.0
"""`dovetail schedule JOBS POOLS --execute`: decides in rounds, and has the engines of the pools do it.

What was done with each job is in a directory beside JOBS, `JOBS.state`; all else is asked anew in each round, JOBS and
POOLS included: jobs may be added, and chips.
"""

import argparse
import functools
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from filelock import FileLock, Timeout

from dovetail.config import ConfigError, did_you_mean, override
from dovetail.hardware import CHIPS, Hardware, hardware
from dovetail.launch import Engine, JobInfo
from dovetail.launch.schedule import (
    Cluster,
    Decision,
    Demand,
    Did,
    Executor,
    Fleet,
    JobSpec,
    Place,
    Pool,
    Seen,
    Settings,
    decide,
    demands,
    explain,
    hardware_name,
    read_jobs,
    read_pools,
    read_rates,
)

from ._job import LAUNCHERS, job_for
from ._launch import Asked
from ._resolve import resolve
from ._schedule_text import decision_json
from ._table import printable, table

if TYPE_CHECKING:
    from dovetail.launch.schedule import Forecast

# SkyPilot does not say in which directory a job of its runs: nobody could tell whether a run has one already.
_ENGINES = ("slurm", "kubernetes")
_TOLD = ("steps", "running", "waited_seconds", "ran_seconds", "arrival_seconds", "kind")  # By runs, not by JOBS.
_OVER = ("done", "failed", "cancelled")
_TICK = 0.2


class _Asked(NamedTuple):
    """What is in the files."""

    cluster: Cluster
    specs: list[JobSpec]


def execute(args: argparse.Namespace, settings: Settings, forecast: "Forecast") -> int:
    """Carries out decisions, until all jobs have ended or `--rounds` were made; returns the exit code."""
    asked = _read(args)
    state = Path(f"{args.jobs}.state")
    state.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(state / "lock", timeout=0), _until_asked_to_end() as ends:
            return _rounds(args, settings, forecast, asked, Executor(_Engines(asked), state), ends)
    except Timeout:
        raise ConfigError(f"schedule: another scheduler carries out {args.jobs}. Let it, or end it first.") from None


def _rounds(
    args: argparse.Namespace,
    settings: Settings,
    forecast: "Forecast",
    asked: _Asked,
    executor: Executor,
    ends: Callable[[], bool],
) -> int:
    number = 0
    while True:
        number += 1
        try:
            if number > 1:
                asked = _read(args)
                executor.fleet = _Engines(asked)
            seen, did = _round(args, settings, forecast, asked, executor)
        except ConfigError as e:
            if number == 1:
                raise
            print(f"schedule: {e}\n  Nothing was changed; it is tried again in the next round.", file=sys.stderr)
            seen, did = None, []
        if seen is not None and all(each.state in _OVER for each in seen):
            return 0 if all(each.state == "done" for each in seen) else 1
        if number == args.rounds:
            return 0 if seen is not None and not any(each.what == "refused" for each in did) else 1
        until = time.monotonic() + settings.round
        while time.monotonic() < until:
            if ends():
                print("schedule: ended. Jobs go on; the same command takes them over.", file=sys.stderr)
                return 0
            time.sleep(_TICK)


def _round(
    args: argparse.Namespace, settings: Settings, forecast: "Forecast", asked: _Asked, executor: Executor
) -> tuple[list[Seen], list[Did]]:
    """Looks, decides, carries out, and prints; returns how jobs were before, and what was done."""
    seen = executor.look(asked.specs)
    there = [each for each in seen if each.state in ("waits", "runs", "leaves")]
    known = {each.spec.name: executor.asked(each, _steps(each.spec)) for each in there}
    rates = read_rates(args.rates, asked.cluster.pools) if args.rates else {}
    jobs = [_allowed(job, executor) for job in demands(list(known.values()), asked.cluster.pools, rates, forecast)]
    decision = decide(asked.cluster, jobs, settings)
    waiting = explain(decision)
    did = executor.carry_out(decision, seen)
    if args.json:
        text = json.loads(decision_json(asked.cluster, settings, decision, waiting))
        states = {each.spec.name: {"state": each.state, "step": each.step, "rate": each.rate} for each in seen}
        print(json.dumps({"time": time.time(), "jobs": states, "did": [each._asdict() for each in did], **text}))
    else:
        print(printable(_text(seen, decision, did, {each.job: each.reason for each in waiting})), flush=True)
    return seen, did


def _allowed(job: Demand, executor: Executor) -> Demand:
    """Returns a job without the places where its engine has refused it of late, if there are others."""
    rates = {place: rate for place, rate in job.rates.items() if executor.may_have(job.name, place)}
    return job._replace(rates=rates or job.rates)


def _text(seen: Sequence[Seen], decision: Decision, did: Sequence[Did], waiting: Mapping[str, str]) -> str:
    """Returns how jobs are, and what was done, for a person."""
    placed = {each.job: each for each in decision.placements}
    done = {each.job: each for each in did}
    rows = []
    for each in seen:
        name, state, place, detail = each.spec.name, each.state, each.place, each.detail
        if state not in _OVER and state != "foreign":
            to = placed.get(name)
            state = "waits" if to is None else "runs"
            place = None if to is None else (to.pool, to.chips)
            detail = waiting.get(name, "")
            if name in done:
                state, detail = done[name].what, done[name].why
        where, chips = place or ("", "")
        rate = "" if each.rate is None else f"{each.rate:.3g}"
        rows.append((name, state, where, chips, each.step, rate, detail.splitlines()[0] if detail else ""))
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    return f"{now}\n{table(('job', '', 'pool', 'chips', 'step', 'steps/s', ''), rows)}\n"


def _read(args: argparse.Namespace) -> _Asked:
    """Returns what the files say; a ConfigError if that cannot be carried out."""
    pools = read_pools(args.pools)
    for pool in pools:
        if pool.via not in _ENGINES:
            found = f"via is {pool.via!r}" if pool.via else "via is missing"
            raise ConfigError(
                f"POOLS {args.pools}: [{pool.name}]: {found}, and --execute hands jobs to engines."
                f"{did_you_mean(pool.via, _ENGINES)}\n  Use one of {', '.join(_ENGINES)}."
            )
        try:
            override(LAUNCHERS[pool.via](), pool.launch).build()
        except ConfigError as e:
            raise ConfigError(f"POOLS {args.pools}: [{pool.name}]: launch: {e}") from e
    asked = read_jobs(args.jobs, pools)
    specs = [_spec(args.jobs, spec) for spec in asked.jobs]
    there: dict[str, str] = {}
    for spec in specs:
        if spec.directory in there:
            both = f"{there[spec.directory]} and {spec.name}"
            raise ConfigError(f"JOBS {args.jobs}: {both} have the same directory. Give each job one of its own.")
        there[spec.directory] = spec.name
    return _Asked(Cluster(pools, asked.teams), specs)


def _spec(file: str, spec: JobSpec) -> JobSpec:
    where = f"JOBS {file}: [jobs.{spec.name}]"
    if not spec.recipe:
        raise ConfigError(f'{where}: recipe is missing, and --execute runs it.\n  Add recipe = "...".')
    empty = JobSpec(name=spec.name)
    if told := [name for name in _TOLD if getattr(spec, name) != getattr(empty, name)]:
        raise ConfigError(
            f"{where}: {' and '.join(told)} is set, and with --execute the run says so itself. Remove it.\n"
            '  How many steps it makes is an override: overrides = ["steps=1000"].'
        )
    if "/" in spec.name or spec.name.startswith("."):
        raise ConfigError(f"{where}: its name is that of a file, too: it must have no / and begin with no dot.")
    return spec.set(directory=str(Path(spec.directory or f"runs/{spec.name}").resolve()))


@contextmanager
def _until_asked_to_end() -> Iterator[Callable[[], bool]]:
    """Yields whether somebody has asked this process to end: it does so between two rounds."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda *_: asked.append(1)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@functools.cache
def _steps_of(recipe: str, overrides: tuple[str, ...]) -> float:
    return float(resolve(recipe, overrides, weights=False).cfg.steps)


def _steps(spec: JobSpec) -> float:
    return _steps_of(spec.recipe, tuple(spec.overrides))


class _Engines(Fleet):
    """The engines of pools, as POOLS says."""

    def __init__(self, asked: _Asked) -> None:
        self._pools = {pool.name: pool for pool in asked.cluster.pools}
        self._knows: dict[tuple[str, str], Engine] = {}  # Who has told of a job; two engines may have equal ids.

    def jobs(self) -> Sequence[JobInfo]:
        found: dict[tuple[str, str], JobInfo] = {}
        engines: Mapping[tuple[str, ...], Pool] = {(each.via, *each.launch): each for each in self._pools.values()}
        for pool in engines.values():
            engine: Engine = override(LAUNCHERS[pool.via](), pool.launch).build()
            for info in engine.jobs():
                found.setdefault((pool.via, info.id), info)
                self._knows.setdefault((info.id, info.directory), engine)
        return list(found.values())

    def submit(self, spec: JobSpec, place: Place) -> JobInfo:
        pool, chips = self._pools[place[0]], place[1]
        on, processes, spares = None, chips, spec.spares
        if (pool.hardware or pool.name) in CHIPS:
            found = hardware(hardware_name(pool, chips))
            on, processes, spares = found.name, None, -(-spec.spares // _chips_of_host(found))
        asked = Asked(
            spec.recipe,
            [*spec.overrides, f"directory={spec.directory}", *(f"launch.{text}" for text in pool.launch)],
            pool.via,
            {"processes": processes, "spares": spares, "min_processes": None},
            on=on,
            code=spec.code,
        )
        prepared = asked.prepared()
        engine: Engine = prepared.cfg.build()
        return engine.submit(job_for(prepared.cfg, prepared.run, prepared.arguments, prepared.code))

    def cancel(self, info: JobInfo) -> None:
        self._knows[info.id, info.directory].cancel(info)


def _chips_of_host(found: Hardware) -> int:
    return math.prod(found.host_shape)
