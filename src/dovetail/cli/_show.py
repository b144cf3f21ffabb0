# SPDX-License-Identifier: Apache-2.0
"""`dovetail show RECIPE`: its config, its size, or its parameters on a mesh."""

import argparse
import json

from dovetail.config import to_json, to_text

from ._mesh import show_mesh
from ._resolve import resolve


def add_show(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> int:
    cfg = resolve(args.recipe, args.overrides, args.mesh, args.on)
    if args.mesh is not None:
        return show_mesh(cfg, args.json)
    if not args.json:
        print(to_text(cfg), end="")
        return 0
    from dovetail.train import size_of

    print(json.dumps({"config": json.loads(to_json(cfg)), **size_of(cfg)._asdict()}, indent=2))
    return 0
