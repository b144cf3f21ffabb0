# SPDX-License-Identifier: Apache-2.0
"""Which lines of its file a function needs: all of each definition that runs, and of the tables that these look into.

Code of other files, as that of a library it calls, is not counted; nor are imports.
"""

import ast
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from .meter import code_lines

Lines = frozenset[tuple[str, int]]  # File and number.


def run_and_count(function: Callable[..., Any], *args: Any) -> tuple[Any, Lines]:
    """Returns what the function returns, and the lines of code of its file that this took."""
    file = function.__code__.co_filename
    entered: set[int] = set()

    def trace(frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename == file:
            entered.add(frame.f_code.co_firstlineno)

    before = sys.gettrace()
    sys.settrace(trace)  # Told of each call, not of each line.
    try:
        result = function(*args)
    finally:
        sys.settrace(before)
    return result, _needed(file, frozenset(entered))


@functools.cache
def _needed(file: str, entered: frozenset[int]) -> Lines:
    """Returns the lines of the definitions in which functions that start at these lines are, and of their tables."""
    source = Path(file).read_text("utf-8")
    tree, code = ast.parse(source), code_lines(source)
    spans = [(node, _span(node)) for node in tree.body]
    tables = {name: node for node in tree.body for name in _assigned(node)}
    needed = [node for node, span in spans if entered & set(span)]
    for node in needed:  # It grows: a table may look into another one.
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        needed += [tables[name] for name in sorted(names & tables.keys()) if tables[name] not in needed]
    return frozenset((file, number) for node in needed for number in _span(node) if number in code)


def _span(node: ast.stmt) -> range:
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return range(first, (node.end_lineno or first) + 1)


def _assigned(node: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name))
