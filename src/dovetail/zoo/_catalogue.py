# SPDX-License-Identifier: Apache-2.0
"""The names of all recipes. Nothing else is imported until one of them is asked for, so that a list takes no time."""

import importlib
from typing import Any

from dovetail.config import ConfigError, did_you_mean

# Name: the function in `dovetail.zoo.recipes`, and the first line of its docstring.
RECIPES = {
    "tiny-lm": ("tiny_lm", "A byte-level model of 0.8 million parameters, for a few minutes on a laptop."),
}


def recipe(name: str) -> Any:
    """Returns the config of the trainer that a recipe describes."""
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES) or f" There are: {', '.join(RECIPES)}."
        raise ConfigError(f"no recipe is called {name!r}.{hint}")
    function = RECIPES[name][0]
    return getattr(importlib.import_module("dovetail.zoo.recipes"), function)()
