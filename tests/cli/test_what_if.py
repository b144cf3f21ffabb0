# SPDX-License-Identifier: Apache-2.0
"""`dovetail predict --what-if`."""

import json

import pytest

from dovetail.cli import main

ARGS = ["predict", "llama2-7b", "--on", "gpu-h100-64", "--what-if"]


def test_changes_and_paths_are_printed(capsys):
    assert main(ARGS) == 0
    out = capsys.readouterr().out
    assert "llama2-7b on gpu-h100-64: a step takes" in out
    assert "twice the peak" in out
    assert "model.stack.layer.ffn.up" in out


def test_changes_and_paths_as_json(capsys):
    assert main([*ARGS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name", "kind", "overrides", "seconds", "gain", "fits"} == set(found["changes"][0])
    assert sum(found["paths"].values()) == pytest.approx(found["step_seconds"])
