# SPDX-License-Identifier: Apache-2.0
"""Meshes on the command line: a run on one, its parameters on one, and what is refused."""

import json
from pathlib import Path

import pytest

from dovetail.cli import main


def test_show_prints_each_parameter_on_the_mesh(capsys):
    assert main(["show", "tiny-lm", "--mesh", "data=2,tensor=4"]) == 0
    first, head, *rows, total = capsys.readouterr().out.splitlines()
    assert first == "mesh: data=2,tensor=4, 8 devices"
    assert head.split() == ["parameter", "shape", "axes", "mesh", "axes", "bytes", "per", "device"]
    (query,) = (row.split() for row in rows if "query" in row)
    assert " ".join(query) == (
        "model.stack.layer.mixer.query.weight (4, 128, 4, 32) layers, embed, heads, head_dim -, -, tensor, - 65,536"
    )
    assert total.startswith("total: 1,282,560 bytes")


def test_show_as_json_has_the_same(capsys):
    assert main(["show", "tiny-lm", "--mesh", "data=2,tensor=4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["mesh"]["tensor"], shown["bytes_per_device"]) == (4, 1_282_560)
    (table,) = (row for row in shown["parameters"] if row["path"] == "model.embedding.table")
    assert table == {
        "path": "model.embedding.table",
        "shape": [4096, 128],
        "axes": ["vocab", "embed"],
        "mesh_axes": [["tensor"], []],
        "bytes_per_device": 4096 * 128 * 4 // 4,
    }


def test_train_on_a_mesh_with_overrides_after_it(tmp_path, capsys):
    run = str(tmp_path / "run")
    options = ["steps=1", "evaluators={}", f"directory={run}"]
    assert main(["train", "llama3-tiny", "--mesh", "data=2,tensor=2", *options]) == 0
    assert "step 1/1" in capsys.readouterr().out
    lines = (Path(run) / "config.txt").read_text().splitlines()
    assert {"mesh.data = 2", "mesh.tensor = 2", "steps = 1"} <= set(lines)


@pytest.mark.parametrize(
    "mesh, text",
    [
        ("tensr=2", "dovetail train: mesh: there is no mesh axis 'tensr'. Did you mean 'tensor'?"),
        (
            "tensor=3",
            "dovetail train: the mesh tensor=3 does not fit:\n  model.stack.layer.ffn.down.weight: dim",
        ),
        (
            "data=16",
            "dovetail train: the mesh data=16 does not fit:\n  input.batch_size is 8, expected a multiple of ",
        ),
    ],
)
def test_a_mesh_that_cannot_work_is_refused_and_nothing_is_written(mesh, text, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "tiny-lm", "--mesh", mesh, f"directory={run}"]) == 2
    assert capsys.readouterr().err.startswith(text)
    assert not run.exists()


def test_what_is_no_override_is_still_an_error(capsys):
    with pytest.raises(SystemExit) as e:
        main(["doctor", "steps=1"])
    assert e.value.code == 2
    assert "unrecognized arguments: steps=1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "tiny-lm", "--mesh", "data=2", "--fast"])
