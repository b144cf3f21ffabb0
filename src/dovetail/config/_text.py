# SPDX-License-Identifier: Apache-2.0
"""Configs as canonical text, one `path = value` per line, and the difference of two of them."""

from collections.abc import Iterator
from typing import NamedTuple

from ._traverse import holds_nodes, visit
from ._values import Node, kind, spell

ROOT = "(root)"
_BRACKETS = {"list": "[]", "tuple": "()", "dict": "{}"}


def to_text(cfg: Node) -> str:
    """Returns the tree as lines `path = value`: equal configs give equal text, in every process.

    A config stands as its class, functions and classes as import paths, a list of configs as its length.
    """
    return "".join(f"{path} = {value}\n" for path, value in _lines(cfg).items())


class Difference(NamedTuple):
    """One path whose value differs; None where the path is not there."""

    path: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.old is None:
            return f"+ {self.path} = {self.new}"
        if self.new is None:
            return f"- {self.path} = {self.old}"
        return f"  {self.path}: {self.old} -> {self.new}"


class Diff(tuple[Difference, ...]):
    """The differences of two configs, in the order of their text; prints one line for each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def diff(old: Node, new: Node) -> Diff:
    """Returns what changes from `old` to `new`, by path; empty exactly if they are equal."""
    a, b = _lines(old), _lines(new)
    return Diff(Difference(path, a.get(path), b.get(path)) for path in _merged(a, b) if a.get(path) != b.get(path))


def _merged(a: dict[str, str], b: dict[str, str]) -> Iterator[str]:
    """Yields the paths of both, what only `b` has where it stands in `b`."""
    new = iter(b)
    for path in a:
        if path in b:
            for other in new:
                if other == path:
                    break
                if other not in a:
                    yield other
        yield path
    yield from (other for other in new if other not in a)


def _lines(cfg: Node) -> dict[str, str]:
    lines: dict[str, str] = {}
    for path, value in visit(cfg):
        opening, closing = _BRACKETS[kind(value)] if holds_nodes(value) else ("", "")
        lines[path or ROOT] = f"{opening}{len(value)} items{closing}" if opening else spell(value)
    return lines
