# SPDX-License-Identifier: Apache-2.0
"""`eval` and `generate` compute as the run did: its mesh, its dtype."""

import json
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.cli._use import start_run
from dovetail.parallel import Mesh
from support.runs import tiny, without_samples


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in bfloat16 on four devices, with the evaluations that its trainer reported."""
    fields = {"compute_dtype": "bfloat16", "mesh": Mesh(data=2, tensor=2), "num_microbatches": 1}
    cfg = without_samples(tiny(tmp_path_factory.mktemp("run"), steps=3, **fields))
    cfg.build().run()
    lines = (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()
    return cfg.directory, [record for record in map(json.loads, lines) if "eval/loss" in record]


def test_eval_gives_what_the_trainer_reported_at_that_step_bit_for_bit(run, capsys):
    directory, reported = run
    assert main(["eval", directory, "--json"]) == 0
    found, err = capsys.readouterr()
    assert "so this is on" not in err
    assert json.loads(found) == {name: reported[-1][name] for name in json.loads(found)}
    # Elsewhere it is near, and not the same: so the above was not on one device, and not in float32.
    for argv in (["--mesh", "data=1"], ["compute_dtype=float32"]):
        assert main(["eval", directory, "--json", *argv]) == 0
        other = json.loads(capsys.readouterr().out)["eval/loss"]
        assert other != reported[-1]["eval/loss"]
        assert other == pytest.approx(reported[-1]["eval/loss"], rel=1e-2)


def test_eval_reads_all_of_a_text_that_is_given(run, capsys, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("It was a dark and stormy night. " * 40, encoding="utf-8")
    assert main(["eval", run[0], "--json", "--text", str(file), "evaluators.eval.input.batch_size=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    size = len(file.read_bytes())
    assert found["eval/tokens"] == size  # All but the first, and the end of the text.


def test_hardware_and_a_mesh_can_both_be_chosen(run, monkeypatch):
    monkeypatch.setattr("jax.devices", lambda *_: [])  # Nothing is computed: the config says it all.
    cfg = start_run(run[0], ["steps=9"], None, "tensor=2", "cpu-8").cfg
    alone = start_run(run[0], ["steps=9"], None, None, "cpu-8").cfg
    assert (cfg.mesh.text(), cfg.steps) == ("tensor=2", 9)
    assert alone.mesh.num_devices == 8
    assert cfg.set(mesh=alone.mesh) == alone


def test_generate_runs_on_the_mesh_of_the_run(run, capsys):
    directory, _ = run
    assert main(["generate", directory, "It was", "tokens=4"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("It was")
    assert "so this is on" not in printed.err


def test_where_devices_are_missing_the_mesh_is_smaller_and_said(run, capsys, monkeypatch):
    directory, reported = run
    monkeypatch.setattr("jax.device_count", lambda: 3)
    assert main(["eval", directory, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["eval/loss"] == pytest.approx(reported[-1]["eval/loss"], rel=1e-2)
    assert (
        "The run was on mesh data=2,tensor=2, 4 devices. This machine has 3 (cpu), so this is on tensor=2. "
        "--mesh chooses another.\n"
    ) in printed.err


def test_a_mesh_that_is_asked_for_and_not_here_is_an_error(run, capsys):
    assert main(["eval", run[0], "--mesh", "data=16"]) == 2
    assert "mesh data=16 takes 16 devices, but there are 8 (cpu)." in capsys.readouterr().err


def test_a_prediction_is_corrected_by_the_metrics_of_a_run(run, capsys):
    directory, _ = run
    argv = ["predict", directory, "--on", "gpu-h100-4", "--json"]
    assert main(argv) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*argv, "--calibrate", directory]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_seconds"] > 2 * plain["step_seconds"]  # A CPU is no H100.
    assert f"{directory} took" in found["assumptions"][-1]


def test_a_directory_without_metrics_is_refused_for_calibration(run, capsys, tmp_path):
    assert main(["predict", "llama3-8b", "--on", "gpu-h100-4", "--calibrate", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
