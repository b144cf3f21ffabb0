# SPDX-License-Identifier: Apache-2.0
"""Counts the lines of an example: those of its classes, which are the feature, and those that bring it into a run."""

import ast
from typing import NamedTuple

from dovetail.loc.meter import code_lines


class Lines(NamedTuple):
    """Lines of code: no blank ones, no comments, no docstrings, no imports."""

    classes: int
    outside: int
    passing: int  # Of those of classes: do nothing but name the context in a signature or a call.


def count_lines(source: str) -> Lines:
    """Returns the lines of a file.

    >>> count_lines('import a\\n\\nclass A:\\n    x = 1\\n\\ndef f():\\n    return A')
    Lines(classes=2, outside=2, passing=0)
    """
    code, tree = code_lines(source), ast.parse(source)

    def spans(kinds: type | tuple[type, ...]) -> set[int]:
        nodes = (node for node in tree.body if isinstance(node, kinds))
        return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}

    classes, imports = spans(ast.ClassDef), spans((ast.Import, ast.ImportFrom))
    inside = [line for number, line in code.items() if number in classes]
    passing = [line for line in inside if "context" in line and "context." not in line]
    return Lines(len(inside), len(code.keys() - classes - imports), len(passing))
