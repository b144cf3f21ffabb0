# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch RECIPE --sweep PATH=VALUE,VALUE --seeds N`: one run for each combination, compared in one table.

Each run has a directory of its own, `DIRECTORY/sweep/NAME`, and what is known of a sweep is what these say: the same
command again goes on with what is missing. `DIRECTORY/sweep` has the table and a picture.
"""

import argparse
import collections
import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from dovetail.config import ConfigError, override, split_override
from dovetail.launch import DONE, FAILED, RESUMABLE, Engine, Job, JobInfo, Variant, exit_code_in, record_in

from ._job import job_for
from ._start import start_and_overrides, without_changes
from ._sweep_picture import sweep_picture
from ._sweep_results import Result, best, measured, result_of, table_of
from ._table import printable

if TYPE_CHECKING:
    from ._launch import Asked, Prepared

_LOOK = 2.0  # Seconds between two looks at what runs.
_MOST = 10_000
_ENDED = ("done", "failed", "cancelled")
_ASKED = Path("launch") / "sweep.json"  # In the directory of a run: what it was launched as.
_WHOLE = 30  # Lines of a table that is printed whole whenever something is new.
_LONGEST = 100  # Characters of the name of a run.


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of sweeps."""
    values = "launch one run for each of these values; several make a grid"
    parser.add_argument("--sweep", action="append", default=[], metavar="PATH=VALUE,VALUE,...", help=values)
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="and for each of the seeds 0 to N-1")
    parser.add_argument("--metric", help="by which a sweep is compared; by default the training loss")
    parser.add_argument("--at-once", type=int, metavar="N", help="how many runs of a sweep may go on at a time")


def grid(sweeps: Sequence[str], seeds: int) -> list[tuple[str, ...]]:
    """Returns the overrides of each run of a sweep.

    >>> grid(["a.b=1,2", "c=[1, 2],none"], 0)
    [('a.b=1', 'c=[1, 2]'), ('a.b=1', 'c=none'), ('a.b=2', 'c=[1, 2]'), ('a.b=2', 'c=none')]
    """
    if seeds < 0:
        raise ConfigError(f"--seeds is {seeds}, expected how many.")
    axes = [_axis(text) for text in sweeps]
    if seeds:
        axes.append([f"seed={seed}" for seed in range(seeds)])
    paths = [axis[0].partition("=")[0] for axis in axes]
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise ConfigError(f"--sweep: {', '.join(sorted(twice))} is swept twice. Give all its values at once.")
    if (count := math.prod(len(axis) for axis in axes)) > _MOST:
        raise ConfigError(f"--sweep: these are {count:,} runs, expected at most {_MOST:,}.")
    return list(itertools.product(*axes))


def _axis(text: str) -> list[str]:
    path, values = split_override(text)
    if path == "directory":
        raise ConfigError("--sweep: each run has a directory of its own, below directory=... of the sweep.")
    found = [f"{path}={value}" for value in _split(values)]
    if f"{path}=" in found:
        raise ConfigError(f"--sweep {text}: a value is empty. Write PATH=VALUE,VALUE.")
    if twice := {each for each in found if found.count(each) > 1}:
        raise ConfigError(f"--sweep {text}: {', '.join(sorted(twice))} is there twice.")
    return found


def _split(values: str) -> list[str]:
    """Splits at commas that are in no brackets and no quotes.

    >>> _split("1, [2, 3],'a,b'")
    ['1', '[2, 3]', "'a,b'"]
    """
    parts, depth, quote = [""], 0, ""
    for c in values:
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        else:
            depth += (c in "[({") - (c in "])}")
        if c == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


def name_of(overrides: Sequence[str]) -> str:
    """Returns the name of a run, which can be one of a directory, and is the same in any other sweep.

    >>> name_of(["learner.schedule.peak=1e-3", "seed=0"])
    'peak=1e-3,seed=0'

    A value that no directory can have is shortened, and told from others by a hash.

    >>> name_of(["a.layers=[1, 2]"])
    'layers=_1,_2_-86afa7b6'
    """
    parts = (f"{path.rpartition('.')[2]}={value}" for path, _, value in (text.partition("=") for text in overrides))
    told = ",".join(parts)
    plain = re.sub(r"[^A-Za-z0-9.=,+-]+", "_", told)[:_LONGEST]
    return plain if plain == told else f"{plain}-{_digest(*overrides)}"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def sweep(args: argparse.Namespace, asked: "Asked") -> int:
    """Launches what is missing of a sweep, shows how it is, and returns the exit code."""
    overrides = grid(args.sweep, args.seeds)
    if args.at_once is not None and args.at_once < 1:
        raise ConfigError(f"--at-once is {args.at_once}, expected 1 or more.")
    prepared = asked.prepared()
    for each in overrides:
        override(prepared.run.cfg, each)  # What is wrong shows before anything is launched.
    base = Path(prepared.run.cfg.directory).resolve() / "sweep"
    variants = [Variant(base / name_of(each), each) for each in overrides]
    launched_as = {each.directory: _launched_as(args, prepared, each) for each in variants}
    _check_same(launched_as)
    missing = [each for each in variants if exit_code_in(each.directory) != DONE]
    state = _Sweep(base, variants, args.metric or "loss")
    if isinstance(prepared.cfg, Engine.Config):
        return _by_engine(args, prepared, missing, state, launched_as)
    if args.check:
        raise ConfigError(f"--check asks an engine, and --via {args.via} has none. --dry-run shows what it does.")
    if args.dry_run:
        for each in missing:
            print(shlex.join(["dovetail", *_command(args, each)]))
        return 0
    prepared.run.cfg.status.token()
    base.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(base / "lock", timeout=0):
            _write(launched_as, missing)
            code = _Here(args, missing, state).run()
    except Timeout as e:
        raise ConfigError(f"{base}: another sweep is going on there. Wait for it, or name another directory.") from e
    return state.finish(code)


def _launched_as(args: argparse.Namespace, prepared: "Prepared", variant: Variant) -> list[str]:
    """Returns what decides what a run computes."""
    own = [text for text in without_changes(prepared.arguments) if not text.startswith("directory=")]
    return [*own, *(text for name in args.code for text in ("--code", name)), *variant.overrides]


def _check_same(launched_as: Mapping[Path, Sequence[str]]) -> None:
    """Raises if a directory has another run, by the same name: its results would be taken for those of this one."""
    for directory, texts in launched_as.items():
        try:
            before = json.loads((directory / _ASKED).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if before != list(texts):
            raise ConfigError(
                f"{directory} has a run that was launched as\n  {shlex.join(map(str, before))}\nand this one is\n"
                f"  {shlex.join(texts)}\nGive this sweep a directory of its own: directory=runs/NAME."
            )


def _write(launched_as: Mapping[Path, Sequence[str]], missing: Sequence[Variant]) -> None:
    for each in missing:
        (each.directory / _ASKED).parent.mkdir(parents=True, exist_ok=True)
        (each.directory / _ASKED).write_text(json.dumps(launched_as[each.directory]), encoding="utf-8")


class _Sweep:
    """What is known of a sweep, by the directories of its runs, and by the engine."""

    def __init__(self, directory: Path, variants: Sequence[Variant], metric: str) -> None:
        self._directory, self._variants, self._metric = directory, variants, metric
        self._shown: dict[tuple[str, ...], str] = {}

    def results(self, jobs: Sequence[JobInfo] = ()) -> list[Result]:
        told = {each.directory: each.state for each in jobs}
        return [result_of(each.directory, each.overrides, self._metric, told) for each in self._variants]

    def show(self, jobs: Sequence[JobInfo] = ()) -> list[Result]:
        """Writes the table and the picture, prints the table, or what is new in a long one; returns the results."""
        results = self.results(jobs)
        text = printable(table_of(results, self._metric))
        if self._directory.is_dir():  # An engine may have it elsewhere.
            (self._directory / "results.txt").write_text(text + "\n", encoding="utf-8")
            sweep_picture(results, self._metric).save(self._directory / "results.svg")
        known = {each.overrides: each.state for each in results}
        new = [each for each in results if self._shown.get(each.overrides) != each.state]
        if new:
            self._shown = known
            print(f"{text if len(results) <= _WHOLE else printable(table_of(new, self._metric))}\n", flush=True)
        return results

    def finish(self, code: int, jobs: Sequence[JobInfo] = ()) -> int:
        """Shows all, and says what was best; returns the exit code."""
        results = self.show(jobs)
        if (found := best(results, self._metric)) is not None:
            over = f", the mean of {found.seeds}" if found.seeds > 1 else ""
            print(f"best {self._metric}: {found.value:.4g}{over}")
            print(f"  {shlex.join(found.overrides)}" if found.overrides else "  only the seed differs")
        if self._directory.is_dir():
            print(f"The table and a picture are in {self._directory}.")
        done = [each.directory for each in self._variants if exit_code_in(each.directory) == DONE]
        if done and self._metric not in (names := measured(done[0])):
            raise ConfigError(f"--metric {self._metric}: the runs do not have it. They have {', '.join(names)}.")
        return code


def _by_engine(
    args: argparse.Namespace,
    prepared: "Prepared",
    missing: Sequence[Variant],
    state: _Sweep,
    launched_as: Mapping[Path, Sequence[str]],
) -> int:
    kind: type[Engine] = type(prepared.cfg.build())
    if args.at_once is not None and not kind.takes_sweeps:
        raise ConfigError(f"--at-once: {args.via} has queues for that, and starts what is submitted as they allow.")
    cfg = prepared.cfg if args.at_once is None else override(prepared.cfg, [f"at_once={args.at_once}"])
    engine: Engine = cfg.build()
    given = (cfg, prepared.run, prepared.arguments, prepared.code, missing)
    parts = _parts(engine, job_for(*given, reads=prepared.reads)) if missing else []
    if args.dry_run or args.check:
        for part in parts:
            print("\n".join(engine.render(part).values()) if args.dry_run else engine.check(part).strip())
        return 0
    prepared.run.cfg.status.token()
    submitted = [engine.submit(part) for part in parts]
    if engine.takes_sweeps:  # The directories are here, too.
        _write(launched_as, missing)
    for each in submitted:
        print(f"{each.id}  {each.name}  {each.state}  {each.directory}", flush=True)
    if submitted and not args.follow:
        state.show(engine.jobs())
        print("The same command with --follow shows how it goes on, and what was best.", file=sys.stderr)
        return 0
    ids, jobs = {each.id for each in submitted}, engine.jobs() if submitted else ()
    while any(each.state not in _ENDED and {each.id, each.id.partition("_")[0]} & ids for each in jobs):
        state.show(jobs)
        time.sleep(_LOOK)
        jobs = engine.jobs()
    return state.finish(DONE if all(each.state == "done" for each in state.results(jobs)) else FAILED, jobs)


def _parts(engine: Engine, job: Job) -> list[Job]:
    """Returns the jobs that an engine is given: all runs as one, or one each, whose name says which."""
    if engine.takes_sweeps:
        return [job]
    assert job.bundle is not None
    stem = job.name.removesuffix(f"-{job.bundle.hash[:8]}")
    digests = [_digest(job.bundle.hash, *each.overrides) for each in job.sweep]
    return [job.of(number)._replace(name=f"{stem}-{digest}") for number, digest in enumerate(digests)]


class _Here:
    """Runs what is missing on this machine, a few at a time."""

    def __init__(self, args: argparse.Namespace, missing: Sequence[Variant], state: _Sweep) -> None:
        self._args, self._waiting, self._state = args, list(missing), state
        self._at_once = args.at_once or 1
        self._running: dict[subprocess.Popen[bytes], Variant] = {}
        self._others: list[Variant] = []  # A sweep that was killed has left them, and they go on.
        self._failed = 0

    def run(self) -> int:
        """Returns the exit code."""
        told, looked = collections.Counter[int](), 0.0
        with _asked_to_end() as asked:
            while self._running or self._others or (self._waiting and not asked):
                changed = self._start() if not asked else False
                for process in self._running:  # They save, and end; asked three times, they end at once.
                    while told[process.pid] < len(asked):
                        process.terminate()
                        told[process.pid] += 1
                if asked:
                    self._others.clear()
                if self._end() or changed or time.monotonic() - looked > _LOOK:
                    self._state.show()
                    looked = time.monotonic()
                time.sleep(0.1)
        if asked:
            print("asked to end: what ran has saved. The same command goes on.", flush=True)
            return RESUMABLE
        return FAILED if self._failed else DONE

    def _start(self) -> bool:
        before = len(self._waiting)
        while self._waiting and len(self._running) + len(self._others) < self._at_once:
            each = self._waiting.pop(0)
            if _goes_on(each):
                self._others.append(each)
                continue
            with (each.directory / "launch.out").open("ab") as out:
                command = [sys.executable, "-m", "dovetail.cli", *_command(self._args, each)]
                # A session of its own: Ctrl-C reaches this process alone.
                process = subprocess.Popen(
                    command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
                )
            self._running[process] = each
        return len(self._waiting) < before

    def _end(self) -> bool:
        """Takes those away that have ended; returns whether any has."""
        ended = [process for process in self._running if process.poll() is not None]
        for process in ended:
            variant = self._running.pop(process)
            if process.returncode not in (DONE, RESUMABLE):
                print(f"{variant.directory.name} ended with {process.returncode}: see {variant.directory}/launch.out")
            self._failed += process.returncode != DONE
        gone = [each for each in self._others if not _goes_on(each)]
        self._others = [each for each in self._others if each not in gone]
        self._waiting += [each for each in gone if exit_code_in(each.directory) != DONE]
        return bool(ended or gone)


def _goes_on(variant: Variant) -> bool:
    record = record_in(variant.directory)
    return record is not None and record.engine == "local" and record.info().state == "running"


@contextlib.contextmanager
def _asked_to_end() -> Iterator[list[int]]:
    """Yields the signals by which this process was asked to end meanwhile."""
    asked: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda got, _: asked.append(got)) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _command(args: argparse.Namespace, variant: Variant) -> list[str]:
    """Returns the arguments of `dovetail` for one run on this machine."""
    start, overrides = start_and_overrides(args)
    command = ["launch", args.recipe, "--via", args.via, *overrides, *variant.overrides, *start.arguments()]
    for name in ("mesh", "on", "processes", "spares", "min_processes"):
        value = getattr(args, name)
        command += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    for name in args.code:
        command += ["--code", name]
    return [*command, f"directory={os.fspath(variant.directory)}"]
