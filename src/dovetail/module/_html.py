# SPDX-License-Identifier: Apache-2.0
"""A module as a notebook shows it: the tree of its parts, which unfolds, and the parameters that they declare."""
# pyright: reportPrivateUsage=false
# `_children` and `_params` of a module are private to this package, not to its file.

from typing import TYPE_CHECKING

from dovetail.pictures import TIMES, bold, code, dim, folded, html_table, number, shown

from ._tree import modules

if TYPE_CHECKING:
    from ._module import Module

_DEEP = 2  # So many levels are unfolded at first.
_HEAD = ("parameter", "shape", "axes", "count")


def html_of(module: "Module") -> str:
    """Returns the tree; counts are of all layers that a module stands for."""
    return shown(_node("", module, 1, 0))


def _node(name: str, module: "Module", times: int, depth: int) -> str:
    count = sum(spec.size * each for below, each in modules(module, times) for spec in below._params.values())
    stacked = f" {TIMES}{times}" if times > 1 else ""
    counted = [dim(f"{number(count)}{stacked}")] if count else []
    head = " ".join([*([code(name)] if name else []), bold(type(module).__name__), *counted])
    rows = [
        (own, str(spec.shape), ", ".join(axis or "-" for axis in spec.axes), f"{spec.size * times:,}")
        for own, spec in module._params.items()
    ]
    table = [html_table(_HEAD, rows, numeric=(False, False, False, True))] if rows else []
    inside = [_node(each, child, times * (stack or 1), depth + 1) for each, (child, stack) in module._children.items()]
    return folded(head, [*table, *inside], unfolded=depth < _DEEP)
