# SPDX-License-Identifier: Apache-2.0
"""The one traversal of config trees, and the paths it names: `model.decoder.layers[3].ffn`.

A field is `.name`, a list or tuple item `[3]`, a dict entry `.key`, or `['any key']` where the key is not a name.
"""
# pyright: reportPrivateUsage=false
# Node's methods are private to this package, not to its file.

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, TypeVar, cast

from ._errors import ConfigError, did_you_mean
from ._types import show
from ._values import FrozenDict, FrozenList, Node, bare_name, freeze, has_node, join, kind

_N = TypeVar("_N", bound=Node)
_PARTED = (Node, list, tuple, dict)
_SEGMENT = re.compile(r"""\.?([A-Za-z_][\w-]*)|\[(-?\d+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]""")


def parts(value: Any) -> dict[Any, Any]:
    """Returns what a config, list, tuple or dict directly holds, by field name, index or key; {} for all else."""
    match kind(value):
        case "node":
            return value._values()
        case "list" | "tuple":
            return dict(enumerate(cast(list[Any], value)))
        case "dict":
            return value
        case _:
            return {}


def with_parts(value: Any, changed: dict[Any, Any], where: str) -> Any:
    """Returns `value` with some of its parts changed; a config checks them."""
    match kind(value):
        case "node":
            return value._with(changed, where)
        case "dict":
            return FrozenDict({**value, **changed})
        case _:
            items = {**parts(value), **changed}.values()
            return FrozenList(items) if kind(value) == "list" else tuple(items)


def visit(root: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields `(path, value)` for every config, every container of configs and every leaf, parents first.

    A list, tuple or dict without configs in it is a leaf.
    """
    found: list[tuple[str, Any]] = []
    _walk(root, path, found, leaves=True)
    return iter(found)


def _walk(value: Any, path: str, found: list[tuple[str, Any]], leaves: bool) -> None:
    if isinstance(value, Node):
        found.append((path, value))
        prefix = f"{path}." if path else ""
        for name, part in value._values().items():
            if leaves or isinstance(part, _PARTED):
                _walk(part, prefix + name, found, leaves)
    elif holds_nodes(value):
        if leaves:
            found.append((path, value))
        below = [(join(path, key), part) for key, part in parts(value).items()]
        for place, part in sorted(below, key=itemgetter(0)) if isinstance(value, dict) else below:
            _walk(part, place, found, leaves)
    elif leaves:
        found.append((path, value))


def holds_nodes(value: Any) -> bool:
    """Whether a list, tuple or dict has a config anywhere inside."""
    return not isinstance(value, Node) and has_node(value)


def find(root: Any, target: type[_N]) -> list[tuple[str, _N]]:
    """Returns `(path, config)` for every config that is a `target`, the root included, parents first."""
    nodes: list[tuple[str, Any]] = []
    _walk(root, "", nodes, leaves=False)
    return [(path, node) for path, node in nodes if isinstance(node, target)]


def rebuild(value: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Returns `value` with each config `c` for which `change(path, c)` is not None replaced by it, outer ones first.

    What holds no replaced config is shared with `value`, not copied.
    """
    if isinstance(value, Node) and (new := change(path, value)) is not None:
        return new
    changed: dict[Any, Any] = {}
    for key, old in parts(value).items():
        if isinstance(old, _PARTED) and (new := rebuild(old, change, join(path, key))) is not old:
            changed[key] = new
    return with_parts(value, changed, path) if changed else value


def get_in(root: Node, path: str) -> Any:
    """Returns the value at a path."""
    value: Any = root
    here = ""
    for key in split(root, path):
        value, here = _step(root, value, key, path, here), join(here, key)
    return value


def put_in(root: Node, path: str, new: Any) -> Any:
    """Returns `root` with the value at `path` changed; every config on the way checks it."""

    def put(value: Any, keys: list[Any], here: str) -> Any:
        if not keys:
            return new
        is_new_entry = len(keys) == 1 and kind(value) == "dict"
        old = None if is_new_entry else _step(root, value, keys[0], path, here)
        return with_parts(value, {keys[0]: put(old, keys[1:], join(here, keys[0]))}, here)

    if not path and not isinstance(new, Node):
        raise ConfigError(f"(root): expected a config, found {show(freeze(new, '(root)'))}.")
    return put(root, split(root, path), "")


def split(root: Node, path: str) -> list[Any]:
    """Returns the field names, indices and keys that a path is made of."""
    found: list[Any] = []
    at = 0
    while at < len(path):
        match = _SEGMENT.match(path, at)
        if not match or (match[1] and path[at].startswith(".") == (at == 0)):
            raise ConfigError(f"{path!r} is not a path. Write it as in 'model.layers[0].dim'.{_nearest(root, path)}")
        found.append(match[1] or ast.literal_eval(match[2]))
        at = match.end()
    return found


def _step(root: Node, value: Any, key: Any, path: str, here: str) -> Any:
    inside = parts(value)
    if key in inside:
        return inside[key]
    match kind(value):
        case "node":
            what = bare_name(type(value))
        case "list" | "tuple" | "dict":
            what = f"a {kind(value)} of {len(value)}"
        case _:
            what = show(value)
    sort = "field" if kind(value) == "node" else "entry"
    renamed: Mapping[Any, str] = getattr(value, "renamed", {}) if kind(value) == "node" else {}
    now = renamed.get(key)
    hint = f" It is now {now}." if now else _nearest(root, path)
    raise ConfigError(f"{path}: {here or 'the root'} is {what}, it has no {sort} {key!r}.{hint}")


def _nearest(root: Node, path: str) -> str:
    return did_you_mean(path, (place for place, _ in visit(root) if place))
