# SPDX-License-Identifier: Apache-2.0
"""What a modifier did to a config: what it replaced, what went where, and what it left alone."""
# pyright: reportPrivateUsage=false
# Node's methods are private to this package, not to its file.

import abc
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ._base import ConfigBase
from ._inherit import is_off
from ._text import ROOT
from ._traverse import find
from ._values import Node, bare_name, join, kind, same, spell

_Fate = Literal["taken over", "set", "dropped"]


@dataclass(frozen=True)
class Change:
    """One node that a modifier replaced, and what became of its fields: `{path in the node: value}`."""

    path: str
    old: ConfigBase
    new: ConfigBase

    @property
    def taken(self) -> dict[str, Any]:
        """What the new config has from the old one: what was set there, and defaults that differ from its own."""
        return self._fates["taken over"]

    @property
    def set(self) -> dict[str, Any]:
        """What was set in the new config."""
        return self._fates["set"]

    @property
    def dropped(self) -> dict[str, Any]:
        """What the old config had and the new one has not, even if it was a default; nothing if it is inside."""
        return self._fates["dropped"]

    @functools.cached_property
    def _fates(self) -> dict[str, dict[str, Any]]:
        fates: dict[str, dict[str, Any]] = {"taken over": {}, "set": {}, "dropped": {}}
        for fate, path, value in _compare(self.old, self.new, ""):
            fates[fate][path] = value
        if any(node == self.old for _, node in find(self.new, type(self.old))):
            fates["dropped"] = {}
        if type(self.old) is type(self.new):
            fates["taken over"] = {}  # It is all that was not set.
        return fates

    def __str__(self) -> str:
        lines = [f"{self.path or ROOT}: {bare_name(type(self.old))} -> {bare_name(type(self.new))}"]
        for fate, fields in self._fates.items():
            if fields:
                lines.append(f"    {fate}: {', '.join(f'{path} = {_spell(value)}' for path, value in fields.items())}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LeftAlone:
    """A node that is no match but near to one: both are configs of an interface."""

    path: str
    config: ConfigBase
    interface: type[ConfigBase]

    def __str__(self) -> str:
        shared = f"shares {bare_name(self.interface)} with what is replaced"
        return f"{self.path or ROOT}: left alone, {bare_name(type(self.config))} {shared}"


@dataclass(frozen=True)
class Report:
    """The config that a modifier returns, with what it changed and what it left alone.

    `skipped` are matches inside a replaced node, `left_alone` the nodes that are near to matches.
    """

    config: Any
    changes: tuple[Change, ...]
    skipped: tuple[str, ...] = ()
    left_alone: tuple[LeftAlone, ...] = ()

    def __str__(self) -> str:
        count = "1 node" if len(self.changes) == 1 else f"{len(self.changes)} nodes"
        lines = [f"{count} replaced", *(f"  {change}" for change in self.changes)]
        lines += [f"  {path}: not replaced, it lies inside a node that was" for path in self.skipped]
        lines += [f"  {node}" for node in self.left_alone]
        return "\n".join(lines)


def near_interface(node: ConfigBase, target: type[ConfigBase]) -> type[ConfigBase] | None:
    """Returns the interface that the class of a node and a target both belong to, the closest one; None: there is none.

    An interface is the config of a component that derives from `abc.ABC` itself. Roots such as `Component` do not.
    """
    for base in target.__mro__[1:]:
        if issubclass(base, ConfigBase) and isinstance(node, base) and _is_interface(base):
            return base
    return None


def _is_interface(cls: type[ConfigBase]) -> bool:
    return abc.ABC in getattr(cls.__dict__.get("_owner"), "__bases__", ())


def _compare(old: Any, new: Any, at: str) -> Iterator[tuple[_Fate, str, Any]]:
    mine, theirs = new._values(), old._values()
    for name, value in theirs.items():
        path = join(at, name)
        if kind(value) == "marker":
            continue
        if name not in mine:
            if not is_off(old, name):
                yield "dropped", path, value
        elif same(mine[name], value):
            if name in old._explicit or not same(new._defaults[name], value):
                yield "taken over", path, value
        elif isinstance(value, Node) and isinstance(mine[name], Node):
            if type(value) is not type(mine[name]):
                yield "set", path, mine[name]
            yield from _compare(value, mine[name], path)
        elif name in new._explicit:
            yield "set", path, mine[name]
        elif not is_off(old, name):
            yield "dropped", path, value
    for name in new._explicit - theirs.keys():
        yield "set", join(at, name), mine[name]


def _spell(value: Any) -> str:
    return (
        bare_name(type(value)) if isinstance(value, ConfigBase) and not hasattr(value, "_made_from") else spell(value)
    )
