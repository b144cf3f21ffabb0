# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch RECIPE --sweep PATH=VALUE,VALUE --seeds N`: one run for each combination, compared in one table.

Each run has a directory of its own, `DIRECTORY/sweep/NAME`, and what is known of a sweep is what these say: the same
command again goes on with what is missing. `DIRECTORY/sweep` has the table and a picture.
"""

import argparse
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.config import ConfigError, override, split_override
from dovetail.launch import Engine, Variant, exit_code_in

from ._job import job_for
from ._sweep_results import Result, best, picture, result_of, table_of

if TYPE_CHECKING:
    from ._launch import Asked, Prepared

_LOOK = 2.0  # Seconds between two looks at what runs.
_MOST = 10_000


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of sweeps."""
    values = "launch one run for each of these values; several make a grid"
    parser.add_argument("--sweep", action="append", default=[], metavar="PATH=VALUE,VALUE,...", help=values)
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="and for each of the seeds 0 to N-1")
    parser.add_argument("--metric", default="loss", help="by which a sweep is compared; by default the training loss")
    parser.add_argument("--at-once", type=int, metavar="N", help="how many runs of a sweep may go on at a time")


def grid(sweeps: Sequence[str], seeds: int) -> list[tuple[str, ...]]:
    """Returns the overrides of each run of a sweep.

    >>> grid(["a.b=1,2", "c=[1, 2],none"], 0)
    [('a.b=1', 'c=[1, 2]'), ('a.b=1', 'c=none'), ('a.b=2', 'c=[1, 2]'), ('a.b=2', 'c=none')]
    """
    axes: list[list[str]] = []
    for text in sweeps:
        path, values = split_override(text)
        axes.append([f"{path}={value}" for value in _split(values)])
    if seeds:
        axes.append([f"seed={seed}" for seed in range(seeds)])
    paths = [axis[0].partition("=")[0] for axis in axes]
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise ConfigError(f"--sweep: {', '.join(sorted(twice))} is swept twice. Give all its values at once.")
    if seeds < 0 or any(len(set(axis)) < len(axis) for axis in axes):
        raise ConfigError("--sweep: a value is there twice, or --seeds is negative.")
    found = list(itertools.product(*axes))
    if len(found) > _MOST:
        raise ConfigError(f"--sweep: these are {len(found):,} runs, expected at most {_MOST:,}.")
    return found


def _split(values: str) -> list[str]:
    """Splits at commas that are in no brackets."""
    parts, depth = [""], 0
    for c in values:
        depth += (c in "[({") - (c in "])}")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


def names(overrides: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns a name for each run, as short as tells them apart, that can be one of a directory.

    >>> names([("learner.schedule.peak=1e-3", "seed=0"), ("learner.schedule.peak=3e-3", "seed=0")])
    ['peak=1e-3,seed=0', 'peak=3e-3,seed=0']
    """
    found: list[str] = []
    for each in overrides:
        parts = (f"{path.rpartition('.')[2]}={value}" for path, _, value in (text.partition("=") for text in each))
        found.append(re.sub(r"[^\w.,=+-]", "_", ",".join(parts))[:150])
    return [name if found.count(name) == 1 else f"{number}-{name}" for number, name in enumerate(found)]


def sweep(args: argparse.Namespace, asked: "Asked") -> int:
    """Launches what is missing of a sweep, shows how it is, and returns the exit code."""
    prepared = asked.prepared()
    overrides = grid(args.sweep, args.seeds)
    for each in overrides:
        override(prepared.run.cfg, each)  # What is wrong shows before anything is launched.
    base = Path(prepared.run.cfg.directory).resolve()
    variants = [Variant(base / "sweep" / name, each) for name, each in zip(names(overrides), overrides, strict=True)]
    missing = [each for each in variants if exit_code_in(each.directory) != 0]
    state = _Sweep(base / "sweep", variants, args.metric)
    if isinstance(prepared.cfg, Engine.Config):
        return _by_engine(args, prepared, missing, state)
    if args.dry_run:
        for each in missing:
            print(subprocess.list2cmdline(["dovetail", *_command(args, each)]))
        return 0
    failed = _here(args, missing, state)
    state.finish()
    return 1 if failed else 0


class _Sweep:
    """What is known of a sweep, by the directories of its runs."""

    def __init__(self, directory: Path, variants: Sequence[Variant], metric: str) -> None:
        self._directory, self._variants, self._metric = directory, variants, metric
        self._shown = ""

    def results(self) -> list[Result]:
        return [result_of(each.directory, each.overrides, self._metric) for each in self._variants]

    def show(self) -> None:
        """Writes the table, and prints it if it says something new."""
        results = self.results()
        text = table_of(results, self._metric)
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "results.txt").write_text(text + "\n", encoding="utf-8")
        (self._directory / "results.svg").write_text(picture(results, self._metric), encoding="utf-8")
        known = "\n".join(f"{each.state} {each.overrides}" for each in results)
        if known != self._shown:
            self._shown = known
            print(f"{text}\n", flush=True)

    def finish(self) -> None:
        """Shows all, and says what was best."""
        self.show()
        if (found := best(self.results(), self._metric)) is not None:
            print(f"best {self._metric}: {found.value:.4g}, with\n  {' '.join(found.overrides)}")
        print(f"The table and a picture are in {self._directory}.")


def _by_engine(args: argparse.Namespace, prepared: "Prepared", missing: Sequence[Variant], state: _Sweep) -> int:
    cfg = prepared.cfg if args.at_once is None else override(prepared.cfg, [f"at_once={args.at_once}"])
    engine: Engine = cfg.build()
    job = job_for(cfg, prepared.run, prepared.arguments, prepared.code, missing)
    if not missing:
        state.finish()
        return 0
    parts = [job] if engine.takes_sweeps else [job.of(number) for number in range(len(missing))]
    if args.dry_run or args.check:
        for part in parts:
            print("\n".join(engine.render(part).values()) if args.dry_run else engine.check(part).strip())
        return 0
    submitted = [engine.submit(part) for part in parts]
    for each in submitted:
        print(f"{each.id}  {each.name}  {each.state}  {each.directory}", flush=True)
    state.show()
    if not args.follow:
        print("The same command with --follow shows how it goes on, and what was best.", file=sys.stderr)
        return 0
    ids = {each.id for each in submitted}
    while any(
        each.state not in ("done", "failed", "cancelled") and {each.id, each.id.partition("_")[0]} & ids
        for each in engine.jobs()
    ):
        time.sleep(_LOOK)
        state.show()
    state.finish()
    return 0 if all(each.state == "done" for each in state.results()) else 1


def _here(args: argparse.Namespace, missing: Sequence[Variant], state: _Sweep) -> int:
    """Runs what is missing on this machine, a few at a time; returns how many failed."""
    waiting, running, failed = list(missing), dict[subprocess.Popen[bytes], Variant](), 0
    with _ending(running):
        while waiting or running:
            while waiting and len(running) < max(args.at_once or 1, 1):
                each = waiting.pop(0)
                each.directory.mkdir(parents=True, exist_ok=True)
                with (each.directory / "launch.out").open("ab") as out:
                    command = [sys.executable, "-m", "dovetail.cli", *_command(args, each)]
                    running[subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)] = each
            state.show()
            time.sleep(0.2)
            for process in [each for each in running if each.poll() is not None]:
                variant = running.pop(process)
                if process.returncode:
                    failed += 1
                    print(
                        f"{variant.directory.name} ended with {process.returncode}: see {variant.directory}/launch.out"
                    )
    return failed


@contextlib.contextmanager
def _ending(running: Mapping["subprocess.Popen[bytes]", Variant]) -> Iterator[None]:
    """Asks what runs to save and end, if this process is asked to, or fails."""

    def end(number: int, _: object) -> None:
        for process in list(running):
            process.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in list(running):
            process.terminate()
        for process in list(running):
            process.wait()


def _command(args: argparse.Namespace, variant: Variant) -> list[str]:
    """Returns the arguments of `dovetail` for one run on this machine."""
    command = ["launch", args.recipe, "--via", args.via, *args.overrides, *variant.overrides]
    for name in ("mesh", "on", "processes", "spares", "min_processes"):
        value = getattr(args, name)
        command += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    for name in args.code:
        command += ["--code", name]
    return [*command, f"directory={os.fspath(variant.directory)}"]
