# SPDX-License-Identifier: Apache-2.0
"""The names of all recipes, from the tables of the families. Nothing else is read until one of them is asked for."""

import importlib
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.config import ConfigError, did_you_mean


class Entry(NamedTuple):
    """A table in `families/*.toml`: a model, and how it is trained."""

    family: str  # The function in `dovetail.zoo.families` that makes the model.
    kind: str  # Of the family: "dense", "MoE" (mixture of experts), "SSM" (state space) or "hybrid" (with attention).
    text: str
    parameters: int  # As published; a comment in the table says what is counted.
    model: dict[str, Any]  # Arguments of the family's function.
    recipe: str = "pretrain"  # The function in `dovetail.zoo.recipes` that makes the trainer.
    run: dict[str, Any] = {}  # Arguments of that function.


def _read() -> dict[str, Entry]:
    files = sorted((Path(__file__).parent / "families").glob("*.toml"))
    tables = {file.stem: tomllib.loads(file.read_text("utf-8")) for file in files}
    kinds = {family: table.pop("kind") for family, table in tables.items()}
    return {
        name: Entry(family, kinds[family], **entry) for family, table in tables.items() for name, entry in table.items()
    }


RECIPES = _read()


def recipe(name: str) -> Any:
    """Returns the config of the trainer that a recipe describes."""
    entry = _entry(name)
    make = getattr(importlib.import_module("dovetail.zoo.recipes"), entry.recipe)
    return make(name, model(name), **entry.run)


def model(name: str) -> Any:
    """Returns the config of the model of a recipe."""
    entry = _entry(name)
    return getattr(importlib.import_module("dovetail.zoo.families"), entry.family)(**entry.model)


def check_name(name: str) -> None:
    """Raises if there is no recipe of that name."""
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES) or f" There are: {', '.join(RECIPES)}."
        raise ConfigError(f"no recipe is called {name!r}.{hint}")


def _entry(name: str) -> Entry:
    check_name(name)
    return RECIPES[name]
