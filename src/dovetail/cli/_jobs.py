# SPDX-License-Identifier: Apache-2.0
"""`dovetail jobs [list|show|logs|cancel|resume] [JOB]`: what was launched, by its engine and by the runs' directories.

There is no list of jobs of our own. An engine is asked, and what it does not know, or not any more, is told from the
directories of runs: a job that was launched is always found there.
"""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from dovetail.config import ConfigError, override
from dovetail.launch import Engine, JobInfo, Record, awaited, record_in, records_below

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
    if own and args.via is None:
        raise ConfigError(f"jobs: launch.{own[0]} is of one engine: say which, as in --via {_ENGINES[0]}.")
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
        silent: set[str] = set()
        for via in self._names:
            try:
                found += [_Known(via, info, True) for info in self._told_by(via)]
            except ConfigError as e:
                if self._insists:
                    raise
                silent.add(via)
                if "there is no " not in str(e).partition("\n")[0]:  # Its programs are here: it should have answered.
                    print(printable(f"dovetail jobs: {e}"), file=sys.stderr)
        there = {(each.via, each.info.id) for each in found}
        places = [under, *([Path(named)] if named is not None and Path(named).is_dir() else [])]
        records = {record.directory: record for place in places for record in records_below(place)}
        asked = set(self._names) | ({"local"} if not self._insists else set())
        for record in records.values():
            if record.engine in asked and (record.engine, record.id) not in there and not record.about.get("runs"):
                info = record.unanswered() if record.engine in silent else record.info()
                found.append(_Known(record.engine, info, False))
        return found

    def _told_by(self, via: str) -> Sequence[JobInfo]:
        engine = self.of(via)
        try:
            return engine.jobs()
        except ConfigError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as e:  # It is of another shape than ever known.
            raise ConfigError(
                f"jobs: what {via} answers is not understood ({type(e).__name__}: {e}).\n"
                "  Ask it by its own program; its version may be too old, or too new."
            ) from e


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
    chosen = alive or _newest(matching)
    if len(chosen) > 1:
        arrays = {(each.via, each.info.id.partition("_")[0]) for each in chosen}
        if living and len(arrays) == 1:  # A sweep is cancelled as a whole.
            ((_, whole),) = arrays
            return dataclasses.replace(chosen[0], info=dataclasses.replace(chosen[0].info, id=whole))
        ids = ", ".join(each.info.id for each in chosen)
        raise ConfigError(f"jobs: {named!r} stands for several: {ids}. Name one by its id.")
    return chosen[0]


def _newest(matching: Sequence[_Known]) -> list[_Known]:
    """Returns, of jobs that are over, the last one in each directory."""

    def age(known: _Known) -> tuple[bool, list[int]]:
        return known.record is not None, [int(digits) for digits in re.findall(r"\d+", known.info.id)]

    return list({each.info.directory or each.info.name: each for each in sorted(matching, key=age)}.values())


def _list(found: Sequence[_Known], as_json: bool) -> int:
    if as_json:
        print(json.dumps([{"via": each.via, **dataclasses.asdict(each.info)} for each in found], indent=2))
        return 0
    rows = [
        (info.id, each.via, info.name, info.state, info.restarts, " ".join(info.detail.split()), info.directory)
        for each in found
        for info in (each.info,)
    ]
    head = ("id", "via", "name", "state", "restarts", "in the engine's words", "directory")
    print(printable(table(head, rows)) if rows else "No jobs are known here.")
    return 0


def _show(known: _Known, as_json: bool) -> int:
    record = known.record
    about = {"via": known.via, **dataclasses.asdict(known.info), "known to the engine": known.lives}
    about["log"] = str(record.printed) if record is not None else ""
    report = Path(known.info.directory) / "launch" / "report.txt"
    if known.info.state == "failed" and known.info.directory and report.exists():
        about["report"] = report.read_text("utf-8", errors="replace").strip()
    if as_json:
        print(json.dumps(about, indent=2))
    else:
        print(printable("\n".join(f"{name}: {value}" for name, value in about.items() if value != "")))
    return 0


def _logs(engines: _Engines, known: _Known, follow: bool) -> int:
    if known.lives:
        lines = engines.of(known.via).logs(known.info, follow=follow)
        for line in awaited(known.info, lines) if follow else lines:
            print(printable(line), flush=True)
        return 0
    record = known.record
    if record is None or not (follow or record.printed.is_file()):
        where = f"{record.printed} is not there" if record is not None else f"{known.info.directory} is of another one"
        raise ConfigError(f"jobs: {where}: nothing is left of what {known.info.id} has printed.")
    for line in record.lines(follow=follow):
        print(printable(line), flush=True)
    return 0


def _cancel(engines: _Engines, known: _Known) -> int:
    if known.info.state in _ENDED:
        print(f"{known.info.id} is over: {known.info.state}")
        return 0
    if known.via == "local":
        record = known.record
        if record is None or record.pid is None:
            raise ConfigError(f"jobs: {known.info.id} is not of this machine: cancel it where it runs.")
        record.end()
    else:
        engines.of(known.via).cancel(known.info)
    print(f"{known.info.id}  {known.info.name}  saves, and ends")
    return 0


def _resume(engines: _Engines, known: _Known) -> int:
    info = known.info
    if info.state == "unknown":
        raise ConfigError(
            f"jobs: whether {info.id} is over is not known: {info.detail}. Ask again when it can be told."
        )
    if info.state not in _ENDED:
        print(f"{info.id}  {info.name}  {info.state}  {info.directory}")
        return 0
    if known.via != "local" and "_" in info.id:
        raise ConfigError(
            f"jobs: {info.id} is one run of a sweep.\n"
            "  Launch the sweep again, as before: what is missing of it goes on where it stopped."
        )
    record = engines.of(known.via).record(info) if known.via != "local" else None
    if record is None:
        raise ConfigError(
            f"jobs: {info.directory or info.id} does not say what was submitted.\n"
            "  Launch it again, as before: it goes on where it stopped."
        )
    again = engines.of(known.via).resume(info, record)
    print(f"{again.id}  {again.name}  {again.state}  {again.directory}")
    return 0
