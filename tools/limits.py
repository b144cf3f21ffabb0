# SPDX-License-Identifier: Apache-2.0
"""Counts what must stay small: lines in a file, code in a function, anything at all in an `__init__.py`.

`python tools/limits.py` prints one line per excess in this repository and exits 1 if there is one.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from dovetail.loc.meter import code_lines

FILE_LINES = 500
EXCEPTION_LINES = 800
FUNCTION_CODE_LINES = 60

# File, from the root of the repository: the reason why it may have up to EXCEPTION_LINES lines.
EXCEPTIONS: Mapping[str, str] = {}

DIRECTORIES = ("src", "tests", "benchmarks", "tools", "examples")


def excesses(root: Path, *, exceptions: Mapping[str, str] = EXCEPTIONS) -> list[str]:
    """Returns `file:line: message` for each broken limit in the repository at `root`."""
    files = {
        file.relative_to(root).as_posix(): file.read_text("utf-8")
        for directory in DIRECTORIES
        for file in sorted((root / directory).rglob("*.py"))
    }
    if not files:
        return [f"{root}: no Python files in {', '.join(DIRECTORIES)}"]
    messages = [
        f"{name}:{line}: {message}"
        for name, source in files.items()
        for line, message in _file_excesses(name, source, excepted=name in exceptions)
    ]
    stale = [name for name in exceptions if len(_lines(files.get(name, ""))) <= FILE_LINES]
    return messages + [f"{name}:1: is gone or short enough; remove it from EXCEPTIONS" for name in stale]


def _file_excesses(name: str, source: str, *, excepted: bool) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(source)
    except SyntaxError as e:
        yield e.lineno or 1, f"is not Python: {e.msg}"
        return
    limit = EXCEPTION_LINES if excepted else FILE_LINES
    if (count := len(_lines(source))) > limit:
        yield 1, f"the file has {count} lines; at most {limit}"
    code = code_lines(source).keys()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = len(code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            if count > FUNCTION_CODE_LINES:
                yield node.lineno, f"{node.name} has {count} lines of code; at most {FUNCTION_CODE_LINES}"
    if Path(name).name == "__init__.py":
        for node in tree.body:
            if not (node is _docstring(tree) or _is_reexport(node) or _is_metadata(node)):
                yield (
                    node.lineno,
                    "an __init__.py holds a docstring, `from ._x import Y as Y`, `__all__` only",
                )


def _docstring(node: ast.AST) -> ast.Expr | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str())) as first, *_]:
                return first
    return None


def _is_reexport(node: ast.stmt) -> bool:
    """Whether `node` is `from ._x import Y as Y` or `from .a._x`: a private module, so that `Y` has one public path."""
    match node:
        case ast.ImportFrom(module=str(module), level=1, names=names) if module.rpartition(".")[2].startswith("_"):
            return all(alias.asname == alias.name for alias in names)
    return False


def _is_metadata(node: ast.stmt) -> bool:
    """Whether `node` is `__all__ = [...]`, or the `__version__ = "..."` of the package."""
    match node:
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple()):
            return True
        case ast.Assign(targets=[ast.Name(id="__version__")], value=ast.Constant(value=str())):
            return True
    return False


def _lines(source: str) -> list[str]:
    """Returns the lines as Python counts them (`str.splitlines` also splits at form feeds and the like)."""
    return source.removesuffix("\n").split("\n")


def main() -> int:
    """Prints what exceeds its limit in this repository."""
    messages = excesses(Path(__file__).resolve().parents[1])
    for message in messages:
        print(message)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
