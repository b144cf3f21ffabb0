# SPDX-License-Identifier: Apache-2.0
"""Golden configs: a change of a recipe is a change of a file, and so seen."""

import difflib

import pytest

import golden


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return golden.golden()


def test_there_is_a_file_for_each_family(texts):
    assert {file.stem for file in golden.DIRECTORY.glob("*.txt")} == set(texts)


@pytest.mark.parametrize("file", sorted(golden.DIRECTORY.glob("*.txt")), ids=lambda file: file.stem)
def test_recipes_are_what_they_were(file, texts):
    kept, made = file.read_text("utf-8").splitlines(), texts[file.stem].splitlines()
    if kept != made:
        changes = difflib.unified_diff(kept, made, f"golden/{file.name}", "now", n=1, lineterm="")
        pytest.fail("\n".join([*changes, "If this is meant: make golden"]), pytrace=False)
