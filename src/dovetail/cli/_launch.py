# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch RECIPE --via local --processes N`: resolve, check, run under a supervisor."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dovetail.config import ConfigError, override
from dovetail.launch import Job, Launcher, Local

from ._resolve import note, resolve

_LAUNCHERS: dict[str, type[Launcher.Config]] = {"local": Local.Config}
_PREFIX = "launch."


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--via", choices=sorted(_LAUNCHERS), default="local", help="what starts the processes")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="how many there are")
    parser.add_argument("--spares", type=int, metavar="N", help="warm processes that take the place of one that fails")
    parser.add_argument("--min-processes", type=int, metavar="N", help="with how many it goes on when hosts are lost")
    parser.set_defaults(run=_launch)


def split_launching(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the overrides of the launcher, `launch.` taken away, and the others."""
    own = [text.removeprefix(_PREFIX) for text in overrides if text.startswith(_PREFIX)]
    return own, [text for text in overrides if not text.startswith(_PREFIX)]


def _launch(args: argparse.Namespace) -> int:
    own, rest = split_launching(args.overrides)
    flags = {"processes": args.processes, "spares": args.spares, "min_processes": args.min_processes}
    launcher = override(_LAUNCHERS[args.via]().set(**{k: v for k, v in flags.items() if v is not None}), own, note=note)
    built: Launcher = launcher.build()
    run = resolve(args.recipe, rest, args.mesh, args.on)
    arguments = ["train", args.recipe, *rest]
    for name, value in (("--mesh", args.mesh), ("--on", args.on)):
        arguments += [name, value] if value is not None else []
    if args.mesh is None and args.on is None and run.cfg.mesh.num_devices == 1 and launcher.processes > 1:
        arguments += ["--mesh", f"data={launcher.processes}"]
    elif run.cfg.mesh.num_devices % launcher.processes:
        raise ConfigError(
            f"launch: {launcher.processes} processes do not divide the {run.cfg.mesh.num_devices} devices of the mesh "
            f"{run.cfg.mesh.text()}. Use another number, or --mesh."
        )
    for name in args.code:
        arguments += ["--code", name]
    run.cfg.status.token()
    return built.launch(Job(tuple(arguments), Path(run.cfg.directory), run.cfg.status))
