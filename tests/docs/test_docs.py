# SPDX-License-Identifier: Apache-2.0
"""Everything shown is executed: each Markdown page, and each example in a docstring."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import run_docs

SRC = run_docs.ROOT / "src"
PAGES = [page.relative_to(run_docs.ROOT) for page in run_docs.pages()]
MODULES = sorted(
    ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for file in SRC.rglob("*.py")
    if file.name != "__main__.py"  # Importing it would run it.
    and file.parent.name != "contenders"  # Programs of their own, some for other interpreters.
)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_page_shows_what_happens(page: Path):
    command = [sys.executable, run_docs.__file__, str(page)]
    result = subprocess.run(command, cwd=run_docs.ROOT, capture_output=True, text=True)
    if result.returncode:
        pytest.fail(result.stdout + result.stderr, pytrace=False)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_show_what_happens(name: str):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
