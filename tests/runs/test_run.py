# SPDX-License-Identifier: Apache-2.0
"""Runs read back from their directories."""

import json
import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.runs import Run
from support.drawn import checked, texts


def _write(directory, rate=1.0, name="loss"):
    directory.mkdir(parents=True)
    lines = [{"step": step, "time": 1000.0 + step, name: rate / step} for step in (1, 2, 3)]
    lines += [{"step": 3, "time": 1004.0, "eval/loss": "nan"}, {"step": 3, "sample": "<script>alert(1)</script>\n&"}]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines) + '{"torn')
    (directory / "config.txt").write_text("(root) = Trainer\nsteps = 3\n")
    return Run(directory)


def test_metrics_are_columns_of_one_table(tmp_path):
    run = _write(tmp_path / "a")
    assert run.metrics == ["eval/loss", "loss"]
    assert run.metric("loss") == [1.0, 0.5, 1 / 3]
    columns = run.columns()
    assert list(columns) == ["step", "eval/loss", "loss"]
    assert columns["step"] == [1, 2, 3]
    assert np.array([columns[name] for name in columns]).shape == (3, 3)
    assert all(map(math.isnan, columns["eval/loss"]))
    assert list(run.columns(["loss"])) == ["step", "loss"]
    with pytest.raises(ConfigError, match=r"has not measured 'los', but loss, eval/loss"):
        run.columns(["los"])


def test_samples_and_the_config_are_as_they_were_written(tmp_path):
    run = _write(tmp_path / "a")
    assert run.samples()[-1].text.startswith("<script>")
    assert run.config_text.endswith("steps = 3\n")
    assert run.goodput.starts == 0
    with pytest.raises(ConfigError, match="has written no 'samples', but sample"):
        run.samples("samples")


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no run. Give the directory of a run"):
        Run(tmp_path)
    with pytest.raises(ConfigError, match="nowhere is no directory"):
        Run(tmp_path / "nowhere")


def test_runs_of_one_name_are_told_apart_when_they_are_beside_each_other(tmp_path):
    one, other = _write(tmp_path / "x" / "a"), _write(tmp_path / "y" / "a", 2.0)
    found = texts(checked(one.beside(other, metrics=["loss"])))
    assert len({text for text in found if text.endswith("a") and "…" not in text} | {"x", "y"}) >= 2
    assert {"loss", "step"} <= set(found)


def test_a_notebook_shows_it_and_what_others_wrote_is_text(tmp_path):
    run = _write(tmp_path / "<b>a")
    page = ET.fromstring(run._repr_html_().replace("<br>", "<br/>"))
    assert "script" not in {each.tag for each in page.iter()}
    assert any("<script>alert(1)</script>" in (each.text or "") for each in page.iter("pre"))
    assert repr(run) == f"Run({str(run.directory)!r})"
    assert Run(run.directory).name == "<b>a"


def test_a_run_that_has_measured_nothing_shows_that(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert "Nothing has been measured yet." in Run(tmp_path)._repr_html_()
