# SPDX-License-Identifier: Apache-2.0
"""`dovetail show RECIPE`: what it is made of and what that takes, its whole config, or its parameters on a mesh."""

import argparse
import json

from dovetail.config import to_json, to_text

from ._mesh import show_mesh
from ._resolve import resolve
from ._summary import print_summary


def add_show(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--full", action="store_true", help="print the whole config, a line for each value")
    parser.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> int:
    cfg = resolve(args.recipe, args.overrides, args.mesh, args.on)
    if args.full:
        print(to_text(cfg), end="")
    elif args.mesh is not None:
        return show_mesh(cfg, args.json)
    elif not args.json:
        print_summary(args.recipe, cfg)
    else:
        from dovetail.train import size_of

        print(json.dumps({"config": json.loads(to_json(cfg)), **size_of(cfg)._asdict()}, indent=2))
    return 0
