# SPDX-License-Identifier: Apache-2.0
"""What is known of an expression: it is the module itself, a child, a config, or a container of those.

An unknown value is `None`. Where control flow meets, `joined` keeps what *may* be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Literal

Kind = Literal["child", "slot", "self", "config", "package", "function", "tuple", "seq", "map"]
_RANK = (
    "child",
    "slot",
    "self",
    "config",
    "function",
    "package",
)  # If two kinds meet, the stricter one stays.
_CONTAINERS = ("tuple", "seq", "map")


@dataclass(frozen=True)
class Value:
    """A kind; `parts` are the items of a tuple, the one element of a seq or map, the result of a function."""

    kind: Kind
    parts: tuple[Value | None, ...] = ()


SELF = Value("self")  # The module whose code is checked: self, cls, super(), type(self).
CHILD = Value("child")  # What `self.child(...)` returned.
CONFIG = Value("config")  # The module's own config.
SLOT = Value("slot")  # The config of a child: a field of the own config annotated `X.Config`.
PACKAGE = Value("package")  # An imported Python module.


def seq(element: Value | None) -> Value:
    return Value("seq", (element,))


def mapping(element: Value | None) -> Value:
    return Value("map", (element,))


def is_container(value: Value | None) -> bool:
    return value is not None and value.kind in _CONTAINERS


def joined(*values: Value | None) -> Value | None:
    """Returns what any of `values` may be."""
    return reduce(_join, values, None)


def item(value: Value | None) -> Value | None:
    """Returns what `value[i]` may be."""
    return joined(*value.parts) if value and is_container(value) else None


def element(value: Value | None) -> Value | None:
    """Returns what a loop over `value` yields; that of a dict are its keys, which are nobody's child."""
    return None if value is None or value.kind == "map" else item(value)


def _join(a: Value | None, b: Value | None) -> Value | None:
    if a is None or b is None or a == b:
        return a or b
    if a.kind == b.kind and len(a.parts) == len(b.parts):
        return Value(a.kind, tuple(_join(x, y) for x, y in zip(a.parts, b.parts, strict=True)))
    if is_container(a) and is_container(b):
        return seq(_join(item(a), item(b)))
    plain = [v for v in (a, b) if not is_container(v)]
    return min(plain, key=lambda v: _RANK.index(v.kind))
