# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch RECIPE --via ENGINE`: resolve, check, show, or hand over to what runs it."""

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

from dovetail.config import ConfigError, check_complete, override
from dovetail.launch import Engine, Launcher
from dovetail.progress import is_quiet, phase

from ._job import LAUNCHERS, job_for
from ._resolve import Run, note, resolve
from ._start import Start, add_start, start_and_overrides
from ._sweep import add_sweep, sweep
from ._text import check_data

_PREFIX = "launch."


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--via", choices=sorted(LAUNCHERS), default="local", help="what starts the processes")
    parser.add_argument("--processes", type=int, metavar="N", help="how many; by default as the hardware has hosts")
    parser.add_argument("--spares", type=int, metavar="N", help="warm hosts that take the place of one that fails")
    parser.add_argument("--min-processes", type=int, metavar="N", help="with how many it goes on when hosts are lost")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="print exactly what would be submitted, and end")
    what.add_argument("--check", action="store_true", help="ask the engine whether it would take the job, and end")
    what.add_argument("--follow", action="store_true", help="show what the job prints until it ends")
    add_start(parser)
    add_sweep(parser)
    parser.set_defaults(run=_launch)


def split_launching(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the overrides of the launcher, `launch.` taken away, and the others."""
    own = [text.removeprefix(_PREFIX) for text in overrides if text.startswith(_PREFIX)]
    return own, [text for text in overrides if not text.startswith(_PREFIX)]


class Asked(NamedTuple):
    """What is to be launched, as the command line says it."""

    recipe: str
    overrides: Sequence[str]  # Those of the launcher among them.
    via: str
    flags: dict[str, int | None]  # Of the launcher.
    mesh: str | None = None
    on: str | None = None
    code: Sequence[str] = ()
    start: Start = Start()

    def prepared(self) -> "Prepared":
        """Returns what does it, and what it is given. Nothing is submitted, started, or written."""
        own, rest = split_launching(self.overrides)
        cfg = LAUNCHERS[self.via]().set(**{name: value for name, value in self.flags.items() if value is not None})
        cfg = override(cfg, own, note=note)
        start = self._start(cfg.build())  # What is wrong with the launcher shows before what takes longer.
        run = resolve(self.recipe, rest, self.mesh, self.on, change=start.change)
        named = {text.partition("=")[0] for text in own} | {name for name, n in self.flags.items() if n is not None}
        if isinstance(cfg, Engine.Config) and "processes" not in named and run.hardware is not None:
            cfg = cfg.set(processes=cfg.processes_on(run.hardware))
        arguments = self._arguments(cfg, run, [*rest, *start.arguments()])
        return Prepared(cfg, run, arguments, self.code, start.paths)

    def _start(self, launcher: Launcher) -> Start:
        """Returns what the run starts on, as its hosts are told. Data that is here as well is looked at."""
        is_here = launcher.shares_files if isinstance(launcher, Engine) else True
        start = self.start.in_full() if isinstance(launcher, Engine) else self.start
        if is_here:
            check_data([place for place in start.data if "://" not in place])
        return start

    def _arguments(self, cfg: Launcher.Config, run: Run, rest: Sequence[str]) -> list[str]:
        """Returns the arguments of `dovetail` in each process."""
        arguments = ["train", self.recipe, *rest]
        for name, value in (("--mesh", self.mesh), ("--on", self.on)):
            arguments += [name, value] if value is not None else []
        arguments += ["--quiet"] if is_quiet() else []
        devices = run.cfg.mesh.num_devices
        if self.mesh is None and self.on is None and devices == 1 and cfg.processes > 1:
            return [*arguments, "--mesh", f"data={cfg.processes}"]
        if devices % cfg.processes:
            raise ConfigError(
                f"launch: {cfg.processes} processes do not divide the {devices} devices of the mesh "
                f"{run.cfg.mesh.text()}. Use another number, or --mesh."
            )
        return arguments


class Prepared(NamedTuple):
    """What is to be launched, looked up."""

    cfg: Launcher.Config
    run: Run
    arguments: list[str]
    code: Sequence[str]
    reads: Sequence[str] = ()  # Paths of data.


def asked(args: argparse.Namespace) -> Asked:
    """Returns what a command line asks for."""
    flags = {name: getattr(args, name) for name in ("processes", "spares", "min_processes")}
    start, overrides = start_and_overrides(args)
    return Asked(args.recipe, overrides, args.via, flags, args.mesh, args.on, args.code, start)


def files_text(files: dict[str, str]) -> str:
    """Returns files for a person: one as it is, several after a line with the name of each."""
    if len(files) == 1:
        return next(iter(files.values()))
    return "\n".join(f"==== {name}\n{text}" for name, text in files.items())


def _launch(args: argparse.Namespace) -> int:
    if args.sweep or args.seeds:
        return sweep(args, asked(args))
    for option, value in (("--at-once", args.at_once), ("--metric", args.metric)):
        if value is not None:
            raise ConfigError(f"{option} is of sweeps, and there is no --sweep and no --seeds. Remove it.")
    prepared = asked(args).prepared()
    launcher: Launcher = prepared.cfg.build()
    job = job_for(prepared.cfg, prepared.run, prepared.arguments, prepared.code, reads=prepared.reads)
    if args.dry_run:
        print(files_text(dict(launcher.render(job))), end="")
        return 0
    check_complete(prepared.run.cfg)  # Before chips are waited for.
    prepared.run.cfg.status.token()
    if not isinstance(launcher, Engine):
        if args.check:
            raise ConfigError(f"--check asks an engine, and --via {args.via} has none. --dry-run shows what it does.")
        return launcher.launch(job)
    if args.check:
        with phase(f"asking {args.via}"):
            said = launcher.check(job).strip()
        print(said)
        return 0
    with phase(f"handing it over to {args.via}"):
        submitted = launcher.submit(job)
    print(f"{submitted.id}  {submitted.name}  {submitted.state}  {submitted.directory}", flush=True)
    if args.follow:
        return launcher.follow(submitted)
    print(f"dovetail jobs logs -f {submitted.id}  shows what it prints.", file=sys.stderr)
    return 0
