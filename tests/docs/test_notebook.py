# SPDX-License-Identifier: Apache-2.0
"""Notebooks in the documents show what happens."""

import ast
import json
from pathlib import Path

import pytest

import run_notebook

NOTEBOOKS = [pytest.param(file, id=file.name) for file in run_notebook.notebooks()]


@pytest.mark.long
@pytest.mark.parametrize("file", NOTEBOOKS)
def test_a_notebook_shows_what_happens(file: Path):
    assert not run_notebook.run_notebook(file)


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_a_notebook_was_executed_as_it_is_and_is_small(file: Path):
    found = json.loads(file.read_text("utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    for cell in cells:
        last = ast.parse("".join(cell["source"])).body[-1]
        assert bool(cell["outputs"]) == isinstance(last, ast.Expr)
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    assert file.stat().st_size < 100_000


def _notebook(file: Path, *sources: str) -> Path:
    cells = [{"cell_type": "code", "source": source, "outputs": [], "execution_count": None} for source in sources]
    file.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "# Text"}, *cells]}))
    return file


def test_outputs_are_written_and_then_they_are_those_of_the_code(tmp_path):
    source = "class A:\n    def _repr_html_(self):\n        return f'<b>{id(self)}</b>'\nprint('x')\nA()"
    file = _notebook(tmp_path / "a.ipynb", "a = 1", source, "a + 1")
    assert len(run_notebook.run_notebook(file)) == 2
    assert run_notebook.run_notebook(file, update=True) == []
    assert run_notebook.run_notebook(file) == []  # Numbers in HTML may differ.
    outputs = [cell.get("outputs") for cell in json.loads(file.read_text())["cells"]]
    assert outputs[3][0]["data"] == {"text/plain": ["2"]}
    assert [each["output_type"] for each in outputs[2]] == ["stream", "execute_result"]
    changed = file.read_text().replace('"2"', '"3"')
    file.write_text(changed)
    assert "cell 3 shows" in run_notebook.run_notebook(file)[0]


def test_a_cell_that_raises_is_told_and_ends_it(tmp_path):
    problems = run_notebook.run_notebook(_notebook(tmp_path / "a.ipynb", "1 / 0", "print(1)"), update=True)
    assert "cell 1 raises:" in problems[0]
    assert "ZeroDivisionError" in problems[0]
