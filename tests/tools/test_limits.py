# SPDX-License-Identifier: Apache-2.0
"""The limits are counted as CONTRIBUTING.md states them: no more, no less."""

from pathlib import Path

import pytest

import limits
from limits import EXCEPTION_LINES, FILE_LINES, FUNCTION_CODE_LINES, excesses


def write(root: Path, name: str, source: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, "utf-8")


def function(num_code_lines: int, filling: str = "") -> str:
    """Returns a function with that many lines of code, the `def` included, and lines that do not count."""
    body = "    x = 1\n" * (num_code_lines - 1)
    return f'def f():\n    """Does a thing.\n\n    And more.\n    """\n{filling}{body}'


@pytest.mark.parametrize("directory", limits.DIRECTORIES)
def test_file_of_the_greatest_length_passes_and_one_line_more_fails(tmp_path, directory):
    write(tmp_path, f"{directory}/a/long.py", "x = 1\n" * FILE_LINES)
    assert excesses(tmp_path) == []
    write(tmp_path, f"{directory}/a/long.py", "x = 1\n" * FILE_LINES + "# and a comment")
    assert excesses(tmp_path) == [f"{directory}/a/long.py:1: the file has 501 lines; at most 500"]


def test_exception_raises_the_limit_of_its_file_only(tmp_path):
    exceptions = {"src/table.py": "generated from a standard"}
    write(tmp_path, "src/table.py", "x = 1\n" * EXCEPTION_LINES)
    assert excesses(tmp_path, exceptions=exceptions) == []
    write(tmp_path, "src/other.py", "x = 1\n" * EXCEPTION_LINES)
    write(tmp_path, "src/table.py", "x = 1\n" * (EXCEPTION_LINES + 1))
    assert excesses(tmp_path, exceptions=exceptions) == [
        "src/other.py:1: the file has 800 lines; at most 500",
        "src/table.py:1: the file has 801 lines; at most 800",
    ]


@pytest.mark.parametrize("name", ["src/short.py", "src/gone.py"])
def test_exception_that_is_not_needed_fails(tmp_path, name):
    write(tmp_path, "src/short.py", "x = 1\n" * FILE_LINES)
    got = excesses(tmp_path, exceptions={name: "was long once"})
    assert got == [f"{name}:1: is gone or short enough; remove it from EXCEPTIONS"]


@pytest.mark.parametrize("filling", ["", "\n" * 70, "    # Why.\n" * 70])
def test_function_counts_code_without_blanks_comments_and_docstring(tmp_path, filling):
    write(tmp_path, "src/a.py", function(FUNCTION_CODE_LINES, filling))
    assert excesses(tmp_path) == []
    write(tmp_path, "src/a.py", "\n" + function(FUNCTION_CODE_LINES + 1, filling))
    assert excesses(tmp_path) == ["src/a.py:2: f has 61 lines of code; at most 60"]


def test_async_functions_and_methods_are_counted(tmp_path):
    method = function(FUNCTION_CODE_LINES + 1).replace("\n", "\n    ")
    write(tmp_path, "src/a.py", f"class A:\n    async {method}")
    write(tmp_path, "src/b.py", f"class B:\n    {method}")
    assert [message.partition(": ")[0] for message in excesses(tmp_path)] == ["src/a.py:2", "src/b.py:2"]


@pytest.mark.parametrize(
    "source",
    [
        "",
        '# SPDX\n"""Doc."""\n',
        '"""Doc."""\nfrom ._a import B as B, c as c\n\n__all__ = ["B", "c"]\n',
        "from .a._b import C as C\n",
        '"""Doc."""\n__version__ = "1.0"\n',
    ],
)
def test_init_that_only_reexports_passes(tmp_path, source):
    write(tmp_path, "src/a/__init__.py", source)
    assert excesses(tmp_path) == []


@pytest.mark.parametrize(
    "statement",
    [
        "import os",
        "from os import path as path",
        "from ._a import B",
        "from ._a import B as C",
        "from ._a import *",
        "from .a import B as B",
        "from ._a.b import C as C",
        "from . import a as a",
        "__all__ = sorted(globals())",
        "__version__ = compute()",
        "x = 1",
        "'a second string'",
        "def f(): ...",
        "if True: ...",
    ],
)
def test_init_with_anything_else_fails_at_its_line(tmp_path, statement):
    write(tmp_path, "src/a/__init__.py", f'"""Doc."""\n{statement}\n')
    assert [message.partition(": ")[0] for message in excesses(tmp_path)] == ["src/a/__init__.py:2"]


def test_what_cannot_be_counted_fails(tmp_path):
    assert excesses(tmp_path) == [f"{tmp_path}: no Python files in src, tests, benchmarks, tools, examples"]
    write(tmp_path, "src/a.py", "\n\ndef\n")
    assert excesses(tmp_path)[0].startswith("src/a.py:3: is not Python")
