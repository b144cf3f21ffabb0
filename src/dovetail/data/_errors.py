# SPDX-License-Identifier: Apache-2.0
"""The error for bad data, the place a config error names, and the packages that only some components need."""

import importlib
import re
from typing import Any

from dovetail.config import Component, ConfigError


class DataError(ValueError):
    """Something is wrong with the data: it says in which file, where, what was found and what was expected."""


def place_of(component: Component, field: str = "") -> str:
    """Returns where a component, or a field of it, is in the config tree: for errors. The root goes by its class."""
    path = getattr(component, "_path", "") or f"{type(component).__name__}.Config"
    return f"{path}.{field}" if field else path


def child_path(component: Component, field: str, key: str | None = None) -> str:
    """Returns the path of what is built from a field of a component, or from one value of a dict in it."""
    path = getattr(component, "_path", "")
    path = f"{path}.{field}" if path else field
    if key is None:
        return path
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z_][\w-]*", key) else f"{path}[{key!r}]"


def optional_import(module: str, *, component: Component | None) -> Any:
    """Returns a module of an optional dependency; the error names the extra of dovetail that brings it.

    Without a component it has been imported before, by one.
    """
    try:
        return importlib.import_module(module)
    except ImportError as e:
        if component is None:
            raise
        raise ConfigError(
            f"{place_of(component)}: {type(component).__name__} needs the package {module.split('.')[0]}, which cannot "
            f"be imported: {e}.\n  Install it: pip install 'dovetail[data]'"
        ) from e
