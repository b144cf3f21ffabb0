# SPDX-License-Identifier: Apache-2.0
"""`docs/coming-from.md`: each name of ours in it is there."""

import importlib
import re

import pytest

import run_docs
from doc_commands import check_bash
from dovetail.config import ConfigError, override, split_override
from dovetail.config._traverse import get_in
from dovetail.zoo import recipe

PAGE = run_docs.ROOT / "docs" / "coming-from.md"


def names() -> list[str]:
    """Returns what stands in backticks in the second columns of the tables."""
    cells = [
        line.split(" | ")[1] for line in PAGE.read_text().splitlines() if line.startswith("| ") and "---" not in line
    ]
    return sorted({name for cell in cells for name in re.findall(r"`([^`]+)`", cell)})


def problem_with(name: str) -> str:
    """Returns what is wrong with a command, a path in a config or a name to import; nothing if it is there."""
    if name.startswith("dovetail "):
        return "; ".join(check_bash([name]))
    if name.startswith("dovetail."):
        module, _, attribute = name.rpartition(".")
        return "" if hasattr(importlib.import_module(module), attribute) else "there is no such name"
    cfg = recipe("tiny-lm")
    try:
        if "=" in name:
            override(cfg, [name], note=lambda line: None)
            name = split_override(name)[0]
        get_in(cfg, name)
    except ConfigError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("name", names())
def test_what_is_called_ours_is_there(name):
    assert problem_with(name) == ""


@pytest.mark.parametrize(
    "name",
    [
        "dovetail trian tiny-lm",
        "dovetail train tiny-lmm",
        "dovetail.nn.Reapeat",
        "mesh.tensors=2",
        "mesh.attention=rings",
    ],
)
def test_a_name_that_is_not_there_is_found(name):
    assert problem_with(name)


def test_each_peer_has_a_table_and_says_what_is_not_here():
    text = PAGE.read_text()
    for peer in ("AXLearn", "MaxText", "TorchTitan", "Megatron-LM"):
        part = text.partition(f"\n## {peer}\n")[2].partition("\n## ")[0]
        assert part.count("\n| ") > 15
        assert "\nNot here: " in part
    assert len(names()) > 80
