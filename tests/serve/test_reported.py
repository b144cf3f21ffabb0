# SPDX-License-Identifier: Apache-2.0
"""What users of other servers met is tested here: the table of docs/serving.md names tests that there are."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_each_of_the_ten_reports_has_tests_by_name():
    table = PAGE.read_text(encoding="utf-8").partition("## What users of other servers met")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows) == 10
    for row in rows:
        named = re.findall(r"`([\w/.]+)::(test_\w+)`", row)
        assert named
        for file, name in named:
            tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"
