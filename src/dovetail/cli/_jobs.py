# SPDX-License-Identifier: Apache-2.0
"""`dovetail jobs [list|show|logs|cancel|resume] [JOB]`: what was launched, by its engine and by the runs' directories.

There is no list of jobs of our own. An engine is asked, and what it does not know, or not any more, is told from the
directories of runs: a job that was launched is always found there.
"""

import argparse
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dovetail.config import ConfigError, override
from dovetail.launch import Engine, JobInfo, Record, record_in, records_below

from ._job import LAUNCHERS
from ._launch import split_launching
from ._table import printable, table

_ACTIONS = ("list", "show", "logs", "cancel", "resume")
_ENGINES = tuple(name for name, cfg in LAUNCHERS.items() if issubclass(cfg, Engine.Config))
_ENDED = ("done", "failed", "cancelled")


@dataclasses.dataclass(frozen=True)
class _Known:
    """A job, and who knows it."""

    via: str  # As `--via` has it.
    info: JobInfo
    lives: bool  # Whether its engine has told of it.

    @property
    def record(self) -> Record | None:
        """What was submitted, if the directory of the run says so, and of this job."""
        found = record_in(Path(self.info.directory)) if self.info.directory else None
        return found if found is not None and found.id == self.info.id else None


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("action", nargs="?", choices=_ACTIONS, default="list", help="by default, list")
    parser.add_argument("job", nargs="?", help="its id, its name, or the directory of its run")
    parser.add_argument("overrides", nargs="*", default=[], metavar="launch.PATH=VALUE", help="of the engine")
    parser.add_argument("--via", choices=_ENGINES, help="the engine to ask; by default each that is here")
    parser.add_argument("--under", default="runs", metavar="DIRECTORY", help="where runs are, for jobs that are over")
    parser.add_argument("-f", "--follow", action="store_true", help="of logs: go on until the job ends")
    parser.set_defaults(run=_jobs)


def _jobs(args: argparse.Namespace) -> int:
    texts = [text for text in (args.job, *args.overrides) if text is not None]
    own, rest = split_launching(texts)
    named = rest[0] if rest else None
    if len(rest) > 1:
        raise ConfigError(f"jobs: {rest[1]!r} is one job too many.")
    if args.action != "list" and named is None:
        raise ConfigError(f"jobs {args.action}: say which one: its id, its name, or the directory of its run.")
    engines = _Engines([args.via] if args.via else _ENGINES, own, insists=args.via is not None)
    found = engines.known(Path(args.under), named)
    if args.action == "list":
        return _list(found if named is None else _matching(found, named), args.json)
    if args.action == "show":
        return _show(_one(found, named or ""), args.json)
    if args.action == "logs":
        return _logs(engines, _one(found, named or ""), args.follow)
    known = _one(found, named or "", living=args.action == "cancel")
    return _cancel(engines, known) if args.action == "cancel" else _resume(engines, known)


class _Engines:
    """Those that are asked."""

    def __init__(self, names: Sequence[str], overrides: Sequence[str], *, insists: bool) -> None:
        self._names, self._overrides, self._insists = names, overrides, insists

    def of(self, via: str) -> Engine:
        """Returns an engine, which must be one."""
        if via not in _ENGINES:
            raise ConfigError(f"jobs: a launch via {via} has no engine: it ends with its terminal.")
        return override(LAUNCHERS[via](), self._overrides).build()

    def known(self, under: Path, named: str | None) -> list[_Known]:
        """Returns the jobs that engines know, and those that directories tell of."""
        found: list[_Known] = []
        for via in self._names:
            try:
                found += [_Known(via, info, True) for info in self.of(via).jobs()]
            except ConfigError as e:
                if self._insists:
                    raise
                if "there is no " not in str(e):  # Its programs are here, so it should have answered.
                    print(f"dovetail jobs: {e}", file=sys.stderr)
        there = {(each.via, each.info.id) for each in found}
        places = [under, *([Path(named)] if named is not None and Path(named).is_dir() else [])]
        records = {record.directory: record for place in places for record in records_below(place)}
        asked = set(self._names) | ({"local"} if not self._insists else set())
        for record in records.values():
            if record.engine in asked and (record.engine, record.id) not in there and not record.about.get("runs"):
                found.append(_Known(record.engine, record.info(), False))
        return found


def _matching(found: Sequence[_Known], named: str) -> list[_Known]:
    """Returns the jobs that a name stands for; the parts of a sweep by the id of the whole, too."""
    place = str(Path(named).resolve())
    whole = [
        each
        for each in found
        if named in (each.info.id, each.info.name, each.info.id.partition("_")[0]) or each.info.directory == place
    ]
    exact = [each for each in whole if each.info.id == named]
    return exact or whole


def _one(found: Sequence[_Known], named: str, *, living: bool = False) -> _Known:
    matching = _matching(found, named)
    if not matching:
        raise ConfigError(f"jobs: there is no job {named!r}. `dovetail jobs` lists all that are known here.")
    alive = [each for each in matching if each.info.state not in _ENDED]
    chosen = alive or matching[-1:]
    if len(chosen) > 1:
        arrays = {each.info.id.partition("_")[0] for each in chosen}
        if living and len(arrays) == 1:  # A sweep is cancelled as a whole.
            first = chosen[0]
            return dataclasses.replace(first, info=dataclasses.replace(first.info, id=arrays.pop()))
        ids = ", ".join(each.info.id for each in chosen)
        raise ConfigError(f"jobs: {named!r} stands for several: {ids}. Name one by its id.")
    return chosen[0]


def _list(found: Sequence[_Known], as_json: bool) -> int:
    if as_json:
        print(json.dumps([{"via": each.via, **dataclasses.asdict(each.info)} for each in found], indent=2))
        return 0
    rows = [
        (each.info.id, each.via, each.info.name, each.info.state, each.info.restarts, each.info.detail)
        for each in found
    ]
    directories = [each.info.directory for each in found]
    shown = [(*row, directory) for row, directory in zip(rows, directories, strict=True)]
    head = ("id", "via", "name", "state", "restarts", "in the engine's words", "directory")
    print(printable(table(head, shown)) if shown else "No jobs are known here.")
    return 0


def _show(known: _Known, as_json: bool) -> int:
    record, directory = known.record, Path(known.info.directory)
    about = {"via": known.via, **dataclasses.asdict(known.info), "known to the engine": known.lives}
    about["log"] = record.log if record is not None else ""
    report = directory / "launch" / "report.txt"
    if known.info.state == "failed" and report.exists():
        about["report"] = report.read_text("utf-8", errors="replace").strip()
    if as_json:
        print(json.dumps(about, indent=2))
    else:
        print(printable("\n".join(f"{name}: {value}" for name, value in about.items() if value != "")))
    return 0


def _logs(engines: _Engines, known: _Known, follow: bool) -> int:
    if known.lives:
        for line in engines.of(known.via).logs(known.info, follow=follow):
            print(printable(line), flush=True)
        return 0
    directory = Path(known.info.directory) / "launch"
    file = Path(known.record.log) if known.record is not None and known.record.log else directory / "0.log"
    try:
        print(printable(file.read_text("utf-8", errors="replace")), end="")
    except OSError as e:
        raise ConfigError(f"jobs: {file} cannot be read: {e.strerror}.") from e
    return 0


def _cancel(engines: _Engines, known: _Known) -> int:
    if known.info.state in _ENDED:
        print(f"{known.info.id} is over: {known.info.state}")
        return 0
    if known.via == "local":
        os.kill(int(known.info.id.rpartition("-")[2]), signal.SIGTERM)
    else:
        engines.of(known.via).cancel(known.info)
    print(f"{known.info.id}  {known.info.name}  saves, and ends")
    return 0


def _resume(engines: _Engines, known: _Known) -> int:
    info = known.info
    if info.state not in _ENDED:
        print(f"{info.id}  {info.name}  {info.state}  {info.directory}")
        return 0
    record = engines.of(known.via).record(info) if known.via != "local" else None
    if record is None:
        raise ConfigError(
            f"jobs: {info.directory or info.id} does not say what was submitted.\n"
            "  Launch it again, as before: it goes on where it stopped."
        )
    again = engines.of(known.via).resume(info, record)
    print(f"{again.id}  {again.name}  {again.state}  {again.directory}")
    return 0
