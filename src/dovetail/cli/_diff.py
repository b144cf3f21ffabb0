# SPDX-License-Identifier: Apache-2.0
"""`dovetail diff A B`: what differs between two recipes."""

import argparse
import json

from dovetail.config import diff

from ._resolve import check, resolve, split_hardware


def add_diff(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("a", help="a recipe, or RECIPE@HARDWARE")
    parser.add_argument("b", help="another one")
    parser.set_defaults(run=_diff)


def _diff(args: argparse.Namespace) -> int:
    for name in (args.a, args.b):
        recipe, on = split_hardware(name, None)
        check(recipe, on=on)
    found = diff(resolve(args.a, weights=False).cfg, resolve(args.b, weights=False).cfg)
    if args.json:
        print(json.dumps([d._asdict() for d in found], indent=2))
    elif found:
        print(found)
    return 0
