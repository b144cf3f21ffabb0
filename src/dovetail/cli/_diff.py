# SPDX-License-Identifier: Apache-2.0
"""`dovetail diff A B`: what differs between two recipes; with `--via`, in what an engine would be given for them."""

import argparse
import difflib
import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from dovetail.config import ConfigError, diff
from dovetail.launch import Engine, Record, record_in

from ._code import code_apart
from ._job import LAUNCHERS, job_for
from ._launch import Asked, split_launching
from ._resolve import check, is_run, resolve, split_hardware
from ._table import printable

_ENGINES = tuple(name for name, cfg in LAUNCHERS.items() if issubclass(cfg, Engine.Config))
_OVERRIDES = "of both; with --via also of the launcher, as in launch.time=2:00:00"


def add_diff(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("a", help="a recipe, or RECIPE@HARDWARE; with --via also the directory of a submitted run")
    parser.add_argument("b", help="another one")
    parser.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help=_OVERRIDES)
    parser.add_argument("--via", choices=_ENGINES, help="compare exactly what this engine would be given")
    parser.add_argument("--mesh", metavar="AXIS=SIZE,...", help="spread both over devices like this")
    parser.set_defaults(run=_diff)


def _diff(args: argparse.Namespace) -> int:
    if args.via is not None:
        return _diff_of_launches(args)
    if own := split_launching(args.overrides)[0]:
        raise ConfigError(f"diff: launch.{own[0]} is of a launcher. Say which one, as in --via slurm.")
    for name in (args.a, args.b):
        recipe, on = split_hardware(name, None)
        check(recipe, args.overrides, on)
    a, b = (resolve(name, args.overrides, args.mesh, weights=False).cfg for name in (args.a, args.b))
    found = diff(a, b)
    if args.json:
        print(json.dumps([d._asdict() for d in found], indent=2))
    elif found:
        print(found)
    return 0


def _diff_of_launches(args: argparse.Namespace) -> int:
    a, b = _given(args.a, args), _given(args.b, args)
    found: list[dict[str, str]] = []
    for name in sorted(a.keys() | b.keys(), key=lambda name: (name.startswith("bundle/"), name)):
        if a.get(name) != b.get(name):
            old = f"{args.a}: {name}" if name in a else "/dev/null"
            new = f"{args.b}: {name}" if name in b else "/dev/null"
            found.append({"file": name, "diff": _unified(a.get(name, b""), b.get(name, b""), old, new)})
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print(printable("".join(each["diff"] for each in found)), end="")
    return 0


def _unified(before: bytes, after: bytes, old: str, new: str) -> str:
    try:
        texts = [each.decode().splitlines() for each in (before, after)]
    except UnicodeDecodeError:
        return f"--- {old}\n+++ {new}\nThese are no texts: {len(before):,} bytes, and {len(after):,}.\n"
    lines = list(difflib.unified_diff(texts[0], texts[1], lineterm=""))[2:]
    return "".join(f"{line}\n" for line in (f"--- {old}", f"+++ {new}", *lines))  # Also of an empty file.


def _given(name: str, args: argparse.Namespace) -> Mapping[str, bytes]:
    """Returns all that the engine is given for a side: its files, and those of the bundle."""
    if (record := record_in(Path(name))) is not None and record.engine in _ENGINES:
        return _submitted(name, record, args.via)
    if (Path(name) / "launch").is_dir() and record is None and not is_run(name):
        raise ConfigError(f"diff: {name} does not say what was submitted: its launch/job.json cannot be read.")
    recipe, on = split_hardware(name, None)
    check(recipe, split_launching(args.overrides)[1], on)
    with code_apart():
        asked = Asked(recipe, args.overrides, args.via, {}, args.mesh, on, args.code)
        prepared = asked.prepared()
        job = job_for(prepared.cfg, prepared.run, prepared.arguments, prepared.code)
        assert job.bundle is not None
        rendered = {file: text.encode() for file, text in prepared.cfg.build().render(job).items()}
        return rendered | {f"bundle/{file}": data for file, data in job.bundle.files.items()}


def _submitted(name: str, record: Record, via: str) -> Mapping[str, bytes]:
    if record.engine != via:
        raise ConfigError(f"diff: {name} was submitted to {record.engine}, not to {via}. Say --via {record.engine}.")
    archive = Path(name) / "launch" / "bundles" / f"{record.bundle}.tar.gz"
    files = {file: text.encode() for file, text in record.files.items()}
    try:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive.read_bytes()))) as bundle:
            for member in bundle:
                data = bundle.extractfile(member)
                files |= {f"bundle/{member.name}": data.read()} if data is not None else {}
    except (OSError, EOFError, ValueError, tarfile.TarError) as e:
        raise ConfigError(f"diff: {archive}, the bundle of that run, cannot be read: {e}.") from e
    return files
