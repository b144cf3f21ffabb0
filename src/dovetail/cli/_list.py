# SPDX-License-Identifier: Apache-2.0
"""`dovetail list`: the recipes."""

import argparse
import difflib
import json

from dovetail.config import ConfigError
from dovetail.zoo import RECIPES

from ._table import short, table


def add_list(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("words", nargs="*", metavar="WORD", help="that name, kind or text contain, as in qwen moe")
    parser.set_defaults(run=_list)


def _list(args: argparse.Namespace) -> int:
    words = [word.lower() for word in args.words]
    found = {
        name: entry
        for name, entry in RECIPES.items()
        if all(word in f"{name} {entry.kind} {entry.text}".lower() for word in words)
    }
    if not found:
        near = difflib.get_close_matches(" ".join(words), RECIPES, n=3, cutoff=0.4)
        hint = f" Did you mean {', '.join(near)}?" if near else " `dovetail list` lists all."
        raise ConfigError(f"no recipe has {' and '.join(map(repr, args.words))} in its name, kind or text.{hint}")
    if args.json:
        fields = ("parameters", "kind", "text")
        shown = {name: {field: getattr(entry, field) for field in fields} for name, entry in found.items()}
        print(json.dumps(shown, indent=2))
    else:
        rows = [(name, short(entry.parameters), entry.kind, entry.text) for name, entry in found.items()]
        print(table(("recipe", "parameters", "kind", "what it is"), rows))
    return 0
