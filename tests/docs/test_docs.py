# SPDX-License-Identifier: Apache-2.0
"""Everything shown is executed: each Markdown page, and each example in a docstring."""

import doctest
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import page_server
import run_docs

SRC = run_docs.ROOT / "src"
LONG = {"features-in-ten-lines.md", "loc-complexity.md", "own-text.md", "parallel.md", "serving.md", "sweeps.md"}
PAGES = [
    pytest.param(page.relative_to(run_docs.ROOT), marks=[pytest.mark.long] if page.name in LONG else [])
    for page in run_docs.pages()
]
MODULES = sorted(
    ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for file in SRC.rglob("*.py")
    if file.name != "__main__.py"  # Importing it would run it.
    and file.parent.name != "contenders"  # Programs of their own, some for other interpreters.
)


@pytest.fixture(scope="module")
def server():
    """A process that forks one for each page."""
    command = [sys.executable, page_server.__file__]
    with subprocess.Popen(command, cwd=run_docs.ROOT, stdin=-1, stdout=-1, text=True, env=os.environ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_page_shows_what_happens(page: Path, server):
    server.stdin.write(f"{page}\n")
    server.stdin.flush()
    result = json.loads(server.stdout.readline())
    if result["code"]:
        pytest.fail(result["output"], pytrace=False)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_show_what_happens(name: str):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
