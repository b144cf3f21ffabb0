# SPDX-License-Identifier: Apache-2.0
"""`dovetail predict RECIPE --on HARDWARE --what-if`: what limits a run, and what would make it faster."""

import argparse
import json
from typing import TYPE_CHECKING

from dovetail.hardware import Hardware
from dovetail.progress import phase

from ._table import table

if TYPE_CHECKING:
    from dovetail.train import Trainer

_SHOWN = 12  # Rows of each table.
_WORTH = 0.005  # Of the time: what saves less is not shown, unless nothing saves more.


def add_what_if(parser: argparse.ArgumentParser) -> None:
    """Adds the argument."""
    parser.add_argument(
        "--what-if", action="store_true", help="list the single changes that gain most, and the time by config path"
    )


def print_what_if(recipe: str, cfg: "Trainer.Config", hardware: Hardware, *, as_json: bool) -> int:
    """Prints changes with their gain, and what the time of a step goes to by config path."""
    from dovetail.plan import by_path, what_if

    with phase("tracing"):
        changes, paths = what_if(cfg, hardware), by_path(cfg, hardware)
    seconds = sum(paths.values())
    if as_json:
        rows = [change._asdict() for change in changes]
        found = {"recipe": recipe, "hardware": hardware.name, "step_seconds": seconds, "changes": rows, "paths": paths}
        print(json.dumps(found, indent=2))
        return 0
    worth = [change for change in changes if change.gain >= _WORTH][:_SHOWN] or changes[:1]
    cells = [
        (change.name, f"{change.gain:6.1%}", "" if change.fits else "does not fit", " ".join(change.overrides))
        for change in worth
    ]
    shown = list(paths.items())[:_SHOWN]
    rest = sum(t for _, t in list(paths.items())[_SHOWN:])
    spent = [*shown, *([(f"{len(paths) - _SHOWN} more", rest)] if rest else [])]
    print(
        f"{recipe} on {hardware.name}: a step takes {seconds:.3g} s\n\n"
        f"{table(('one change', 'saves', '', 'by'), cells)}\n\n"
        f"{table(('where', 'seconds', 'of the step'), [(n, f'{t:.3f}', f'{t / seconds:6.1%}') for n, t in spent])}"
    )
    return 0
