# SPDX-License-Identifier: Apache-2.0
"""`dovetail show RECIPE`: what it is made of and what that takes, its whole config, or its parameters on a mesh."""

import argparse
import json
import sys
from typing import Any

from dovetail.config import to_json, to_text
from dovetail.progress import phase

from ._mesh import show_mesh
from ._resolve import resolve, split_hardware
from ._summary import print_summary


def add_show(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--full", action="store_true", help="print the whole config, a line for each value")
    parser.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> int:
    cfg = resolve(args.recipe, args.overrides, args.mesh, args.on)
    name, on = split_hardware(args.recipe, args.on)
    memory = None if on is None or args.mesh is not None else _memory(cfg, on)
    if args.full and not args.json:  # JSON has it all.
        print(to_text(cfg), end="")
    elif args.mesh is not None:
        return show_mesh(cfg, args.json)
    elif not args.json:
        print_summary(args.recipe, cfg, memory)
    else:
        from dovetail.train import size_of

        found = {"config": json.loads(to_json(cfg)), **size_of(cfg).named()}
        if memory is not None:
            found["memory_per_chip"] = {**memory._asdict(), "total_gib": memory.total_gib, "fits": memory.fits}
        print(json.dumps(found, indent=2))
    if memory is not None and not memory.fits:
        sys.stdout.flush()
        print(
            f"{name} does not fit on {on}, by an estimate: {memory.total_gib:,.0f} GiB per chip (state "
            f"{memory.state_gib:,.0f}, activations {memory.activations_gib:,.0f}) of {memory.limit_gib:,.1f}.\n"
            f"  Use more chips; `dovetail compile {name} --on ...` says for sure.",
            file=sys.stderr,
        )
    return 0


def _memory(cfg: Any, on: str) -> Any:
    """Returns an estimate of the memory of a chip."""
    from dovetail.hardware import hardware
    from dovetail.plan import estimate

    with phase("measuring the model"):
        return estimate(cfg, hardware(on))
