# SPDX-License-Identifier: Apache-2.0
"""A run that was trained is shown with all that it has written; so are its checkpoints in a store of objects."""

from pathlib import Path

import pytest

from dovetail.board import BucketRuns, DirectoryRuns, export
from dovetail.board._runs import View
from dovetail.train import JsonLines, parts_of
from support.runs import tiny
from support.s3 import BUCKET, environment, s3_server


@pytest.mark.long
def test_a_real_run_that_was_resumed_is_shown_with_all_it_has_written(tmp_path: Path) -> None:
    cfg = tiny(tmp_path / "real", steps=12, save_every=4).set(log_every=1, observers=(JsonLines.Config(),))
    cfg.set(steps=4).build().run(allow_change=True)
    cfg.build().run(allow_change=True)
    runs = DirectoryRuns(tmp_path)
    (shown,) = runs.listed()["runs"]
    run = shown["id"]
    assert (shown["state"], shown["step"], shown["steps"], shown["error"], shown["problems"]) == (
        "done",
        12,
        12,
        None,
        [],
    )
    assert 0 < shown["goodput"] < 1
    assert shown["unit"]
    assert {"loss", "grad_norm", "goodput"} <= set(runs.about(run)["metrics"])
    curve = runs.curve(run, View("loss", "step", None, None, 100))
    assert (curve["x"], curve["restarts"], curve["bad"]) == ([float(step) for step in range(1, 13)], [5.0], [])
    units = runs.curve(run, View("loss", "units", None, None, 100))["x"]
    assert units == sorted(units)
    assert units[0] > 0
    seconds = runs.curve(run, View("loss", "time", None, None, 100))["x"]
    assert seconds == sorted(seconds)
    goodput = runs.goodput(run)
    assert sum(span["end"] - span["start"] for span in goodput["spans"]) == pytest.approx(
        sum(goodput["kinds"].values()), abs=0.2
    )
    assert [event["kind"] for event in goodput["events"]] == ["done", "resumed", "done"]
    memory = runs.memory(run, "tpu-v5e-8")
    assert {part["path"]: part["parameters"] for part in memory["parts"] if part["parameters"]} == {
        path: part.parameters for path, part in parts_of(cfg).items() if part.parameters
    }
    assert memory["predicted"]["hardware"] == "tpu-v5e-8"
    assert 0 < memory["predicted"]["step_seconds"] < 1
    assert memory["measured"]["step_seconds"] > 0
    wrong = runs.memory(run, "abacus-8")
    assert "abacus" in wrong["note"]
    assert b"/api/memory?run=" in export(runs, [run])
    runs.close()


@pytest.mark.long
def test_checkpoints_in_a_store_of_objects_have_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moto", reason="the S3 server of the tests: install the extra dev")
    with s3_server() as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        url = f"s3://{BUCKET}/runs/x"
        tiny(tmp_path / "run", steps=2, save_every=2).set_in("checkpoint.directory", url).build().run()
        runs = BucketRuns(f"s3://{BUCKET}/runs")
        about = runs.about("x")
        assert about["run"]["step"] == 2
        assert dict(about["config"])["steps"] == "2"
        assert runs.listed()["runs"][0]["state"] == "done"
        assert runs.memory("x", None)["parts"]
        runs.close()
