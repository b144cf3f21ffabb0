# SPDX-License-Identifier: Apache-2.0
"""Configs by name: which classes fit a slot, and the one that a text names."""
# pyright: reportPrivateUsage=false
# `_owner` is private to this package, not to its file.

import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any

from ._base import ConfigBase
from ._component import Component
from ._errors import ConfigError
from ._function import FunctionConfig, config_for
from ._importing import import_object
from ._values import bare_name, dotted


def choices(slot: type[ConfigBase]) -> dict[str, list[type[ConfigBase]]]:
    """Returns the config classes that fit a slot, by the name of what they build: `{"Muon": [Muon.Config]}`.

    These are the public classes that are imported, after the package of the slot is.
    """
    public = slot.__module__.partition("._")[0]
    if public.partition(".")[0] == __name__.partition(".")[0]:
        importlib.import_module(public)
    found: dict[str, list[type[ConfigBase]]] = {}
    for cls in dict.fromkeys(_below(slot)):
        made = cls.__dict__.get("_owner", cls)
        is_root = made is Component or hasattr(cls, "_made_from")
        is_hidden = made.__name__.startswith("_") or "<locals>" in made.__qualname__
        if not (inspect.isabstract(made) or is_root or is_hidden):
            found.setdefault(bare_name(made), []).append(cls)
    return dict(sorted(found.items()))


def config_named(text: str, slot: type[ConfigBase]) -> ConfigBase | None:
    """Returns a new config of the class that `text` names, by its name or import path; None if there is no such."""
    if issubclass(slot, FunctionConfig):
        function = imported(text)
        return None if function is None else config_for(function)
    name = text.removesuffix(".Config")
    found = choices(slot).get(name, [])
    if len(found) > 1:
        paths = ", ".join(dotted(cls) for cls in found)
        raise ConfigError(f"{text!r} is the name of several: {paths}. Write one of these.")
    if found:
        return found[0]()
    named = imported(name)
    if named is None:
        return None
    cls: Any = getattr(named, "Config", named)
    made = cls() if isinstance(cls, type) and issubclass(cls, ConfigBase) else None
    if not isinstance(made, slot):
        raise ConfigError(f"{text} is not a {bare_name(slot)}.")
    return made


def imported(text: str) -> Any:
    """Returns what a path `package.module.name` or `module:name` names; None if it is not such a path."""
    module, _, name = text.partition(":") if ":" in text else text.rpartition(".")
    while ":" not in text and module and not _is_module(module):
        module, _, head = module.rpartition(".")
        name = f"{head}.{name}"
    return import_object(f"{module}:{name}") if module and name else None


def _below(cls: type[ConfigBase]) -> Iterator[type[ConfigBase]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _below(sub)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
