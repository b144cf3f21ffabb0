# SPDX-License-Identifier: Apache-2.0
"""`dovetail list`: the recipes."""

import argparse
import json

from dovetail.zoo import RECIPES


def list_recipes(args: argparse.Namespace) -> int:
    """Prints the names of all recipes, each with what it is."""
    if args.json:
        print(json.dumps({name: entry.text for name, entry in RECIPES.items()}, indent=2))
    else:
        width = max(map(len, RECIPES))
        print("\n".join(f"{name:{width}}  {entry.text}" for name, entry in RECIPES.items()))
    return 0
