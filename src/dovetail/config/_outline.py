# SPDX-License-Identifier: Apache-2.0
"""A config tree for people: what it sets, without what goes without saying."""

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

from ._base import ConfigBase
from ._traverse import holds_nodes, parts
from ._values import Node, bare_name, join, spell

_LAST_INDEX = re.compile(r"\[\d+\]$")


class Outlined(NamedTuple):
    """A config in the tree."""

    path: str
    depth: int
    kind: str  # What it builds, without its package.
    settings: dict[str, str]  # The fields that do not have their default, in print.


def outline(
    cfg: ConfigBase, built: Mapping[str, ConfigBase] | None = None, *, keep: Container[str] = ()
) -> list[Outlined]:
    """Returns the configs of a tree, parents first, without fields and configs that are as they are by default.

    Args:
        built: by path, configs as they were built: with what their parents set. See `built_configs`.
        keep: paths of configs that stay although they are the default.
    """
    return list(_outlined(cfg, "", 0, built or {}, keep))


def _outlined(
    cfg: Any, path: str, depth: int, built: Mapping[str, ConfigBase], keep: Container[str]
) -> Iterator[Outlined]:
    cfg = built.get(path, cfg)
    defaults = getattr(cfg, "_defaults", {})
    settings: dict[str, str] = {}
    inside: list[Outlined] = []
    for name, value in parts(cfg).items():
        usual = name in defaults and spell(value) == spell(defaults[name])
        if (isinstance(value, Node) and not _is_call(value)) or holds_nodes(value):
            usual = usual and value == defaults.get(name)
            field = join(path, name)
            nodes = dict(_nodes(value, field))
            # What is built may be more than what is listed: the rest of a pattern has places of its own.
            nodes |= {place: built[place] for place in built if _LAST_INDEX.sub("", place) == field}
            for place, node in nodes.items():
                found = list(_outlined(node, place, depth + 1, built, keep))
                inside += found if not usual or len(found) > 1 or place in keep else []
        elif not usual or (_is_call(value) and value != defaults[name]):
            settings[name] = _in_print(value)
    yield Outlined(path, depth, bare_name(type(cfg)).removesuffix(".Config"), settings)
    yield from inside


def _nodes(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the configs of a field with their paths: itself, or those in its list, tuple or dict."""
    if isinstance(value, Node):
        yield path, value
        return
    for key, part in parts(value).items():
        yield from _nodes(part, join(path, key))


def _is_call(value: Any) -> bool:
    """Whether a config is that of a function, which is written as a call."""
    return isinstance(value, Node) and hasattr(value, "_made_from")


def _in_print(value: Any) -> str:
    """Returns a value as one would write it: numbers and words as they are, functions without their package."""
    if _is_call(value):
        defaults = getattr(value, "_defaults", {})
        given = {key: part for key, part in parts(value).items() if spell(part) != spell(defaults.get(key, value))}
        return f"{_in_print(value._made_from)}({', '.join(f'{key}={_in_print(part)}' for key, part in given.items())})"
    if isinstance(value, str):
        return value if value and value.split() == [value] else repr(value)
    text = spell(value)
    return text.rpartition(".")[2] if callable(value) else text
