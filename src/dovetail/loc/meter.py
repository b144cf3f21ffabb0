# SPDX-License-Identifier: Apache-2.0
"""What counts as a line of code: one that is not blank and holds more than a comment or a docstring."""

import ast
import difflib
import io
import tokenize
from collections.abc import Iterator

_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> dict[int, str]:
    """Returns the lines of code by number, without their comments; raises `SyntaxError` if it is not Python.

    A string that stands alone as a statement is a docstring, wherever it is.

    >>> code_lines('x = 1  # One.\\n\\n# More.\\ndef f():\\n    "Nothing."')
    {1: 'x = 1', 4: 'def f():'}
    """
    lines = source.split("\n")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        tree = ast.parse(source)
    except (tokenize.TokenError, ValueError) as e:
        raise SyntaxError(str(e)) from e
    numbers = {n for token in tokens if token.type not in _NOT_CODE for n in _span(token.start[0], token.end[0])}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            numbers.difference_update(_span(node.lineno, node.end_lineno))
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return {number: lines[number - 1].rstrip() for number in sorted(numbers) if lines[number - 1].strip()}


def added_lines(before: str, after: str) -> list[str]:
    """Returns the lines of code that a program has and the one before did not have at that place: new or changed."""
    old, new = (list(code_lines(source).values()) for source in (before, after))
    return list(_added(old, new))


def _added(old: list[str], new: list[str]) -> Iterator[str]:
    for kind, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind in ("insert", "replace"):
            yield from new[start:end]


def _span(first: int, last: int | None) -> range:
    return range(first, (last or first) + 1)
