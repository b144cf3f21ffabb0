# SPDX-License-Identifier: Apache-2.0
"""A config as a notebook shows it: a tree that unfolds, what was set before what is as it is by default."""
# pyright: reportPrivateUsage=false
# Node's methods are private to this package, not to its file.

from collections.abc import Iterator
from typing import Any

from dovetail.pictures import bold, code, dim, folded, row, shown

from ._traverse import holds_nodes, parts
from ._values import Node, bare_name, join, same, spell

_DEEP = 1  # So many levels are unfolded at first.
_LONG = 200  # Characters of a value.


def html_of(cfg: Node) -> str:
    """Returns HTML in which everything from the config is text."""
    return shown(_node("", cfg, 0))


def _node(name: str, cfg: Node, depth: int) -> str:
    """Returns a config with what differs from the defaults of its class; the rest is folded away, in one line."""
    defaults: dict[str, Any] = getattr(type(cfg), "_defaults", {})
    set_rows, usual, inside = list[str](), list[str](), list[str]()
    for field, value in parts(cfg).items():
        is_default = field in defaults and same(value, defaults[field])
        nodes = list(_nodes(value, field))
        if nodes and not is_default:
            inside += [_node(place, node, depth + 1) for place, node in nodes]
        elif is_default:
            usual.append(f"{field} = {_said(value)}")
        else:
            set_rows.append(row(code(field), "=", bold(_said(value))))
    rest = [folded(dim(f"{len(usual)} by default"), [row(code(text)) for text in usual])] if usual else []
    head = " ".join([*([code(name)] if name else []), bold(bare_name(type(cfg)).removesuffix(".Config"))])
    return folded(head, [*set_rows, *inside, *rest], unfolded=depth < _DEEP)


def _nodes(value: Any, path: str) -> Iterator[tuple[str, Node]]:
    """Yields the configs of a field with their paths: itself, or those in its list, tuple or dict."""
    if isinstance(value, Node):
        yield path, value
    elif holds_nodes(value):
        for key, part in parts(value).items():
            yield from _nodes(part, join(path, key))


def _said(value: Any) -> str:
    text = bare_name(type(value)) if isinstance(value, Node) else spell(value) if not holds_nodes(value) else "..."
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
