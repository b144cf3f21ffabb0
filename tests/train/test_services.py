# SPDX-License-Identifier: Apache-2.0
"""Observers that write for others: Weights & Biases and MLflow, the real packages, without a network.

They are installed beside the environment by `make observers`; a process of its own uses them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.config import ConfigError
from dovetail.train import MLflow, WandB
from support.observing import PNG

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / ".venv" / "observers"
needs = pytest.mark.skipif(not PACKAGES.is_dir(), reason="make observers installs wandb and mlflow")

_START = f"""
import sys, json
from pathlib import Path
sys.path.append({str(PACKAGES)!r})
from dovetail.train import MLflow, WandB
from dovetail.train._guarded import Guarded
from support.observing import NAMES, PNG, EDGES, COUNTS, COLUMNS, ROWS, drive
run = Path(sys.argv[1])
"""

_TWICE = """
drive({cfg}.Config({fields}).build(), run)
drive({cfg}.Config({fields}).build(), run, first=4, last=5)
"""

_READ_WANDB = """
from wandb.proto import wandb_internal_pb2
def records(data):  # The format of LevelDB's logs, after a header of 7 bytes.
    at, found = 7, b""
    while at < len(data):
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        found += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # Whole, or the last part.
            yield found
            found = b""

for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
    about = {"id": "", "project": "", "config": {}, "history": [], "exit": None}
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            about |= {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name}
        if kind in ("run", "config"):
            updates = record.run.config.update if kind == "run" else record.config.update
            about["config"] |= {"/".join(u.nested_key) or u.key: json.loads(u.value_json) for u in updates}
        if kind == "history":
            items = record.history.item
            about["history"].append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
        if kind == "exit":
            about["exit"] = record.exit.exit_code
    print(json.dumps(about))
"""

_READ_MLFLOW = """
from mlflow.tracking import MlflowClient
known = json.loads((run / "mlflow.json").read_text())
client = MlflowClient(known["uri"])
(experiment,) = [each for each in client.search_experiments() if each.name == "mine"]
found = client.search_runs([experiment.experiment_id])
place = run / "mlflow" / "artifacts"
written = [file for file in place.rglob("*") if file.is_file()]
files = {str(file.relative_to(place)).partition("/artifacts/")[2]: file.read_bytes().hex() for file in written}
history = {name: [(m.step, str(m.value)) for m in client.get_metric_history(found[0].info.run_id, name)]
           for name in found[0].data.metrics}
print(json.dumps({"runs": len(found), "status": found[0].info.status, "params": found[0].data.params,
                  "tags": found[0].data.tags, "history": history, "files": files, "name": found[0].info.run_name}))
"""


def ran(program: str, directory: Path, **environment: str) -> list[dict]:
    """Runs a program with the packages, without credentials; returns what it printed, a line of JSON each."""
    directory.mkdir(exist_ok=True)
    own = {"PYTHONPATH": f"{ROOT / 'tests'}", "HOME": str(directory.parent), "PYTHONWARNINGS": "ignore"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW"))}
    done = subprocess.run(
        [sys.executable, "-c", _START + program, str(directory)],
        capture_output=True,
        text=True,
        env={**kept, **own, **environment},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("cfg", [WandB.Config(), MLflow.Config()], ids=lambda c: c._label())
def test_a_package_that_is_not_there_is_said_before_anything_starts(cfg, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'dovetail\[(wandb|mlflow)\]'"):
        cfg.build()


@needs
@pytest.mark.long
def test_wandb_keeps_all_of_a_run_here_and_a_resumed_run_is_the_same_one(tmp_path):
    ran(_TWICE.format(cfg="WandB", fields="project='mine', tags=('a',)"), tmp_path / "run")
    first, second = ran(_READ_WANDB, tmp_path / "run")  # The service of wandb ends, and has written, with the process.
    assert (first["id"], first["project"], first["name"], first["exit"]) == (second["id"], "mine", "run", 0)
    assert json.loads((tmp_path / "run" / "wandb.json").read_text()) == {"id": first["id"]}
    assert first["config"]["steps"] == 3
    assert second["config"]["steps"] == 5
    assert (first["config"]["rate"], first["config"]["path"]) == (0.5, "'a = b'")
    assert (first["config"]["run/recipe"], first["config"]["run/parameters"]) == ("tiny", 12)
    losses = [(row["step"], row["loss"]) for found in (first, second) for row in found["history"] if "loss" in row]
    assert losses == [(1, 2.5), (2, 2.5), (3, 2.5), (4, 2.5), (5, 2.5)]
    last = {name: value for row in first["history"] for name, value in row.items()}
    assert last["eval/loss"] == 2.25
    assert last["sample"] == "Call me [bold]Ishmael[/bold]."
    assert (last["weights/up/values"], last["weights/up/bins"]) == ([3, 5], [-1.0, 0.0, 2.0])
    files = tmp_path / "run" / "wandb" / "latest-run" / "files"
    last = {name: value for row in second["history"] for name, value in row.items()}
    assert (last["weights/changes/_type"], last["weights/changes/width"]) == ("image-file", 3)
    assert (files / last["weights/changes/path"]).read_bytes() == PNG
    assert json.loads((files / last["sample/all/path"]).read_text())["columns"] == ["prompt", "tokens", "loss"]


@needs
@pytest.mark.long
def test_mlflow_keeps_all_of_a_run_in_its_directory_and_a_resumed_run_is_the_same_one(tmp_path):
    (found,) = ran(_TWICE.format(cfg="MLflow", fields="experiment='mine'") + _READ_MLFLOW, tmp_path / "run")
    assert (found["runs"], found["status"], found["name"]) == (1, "FINISHED", "run")
    assert {name: found["params"][name] for name in ("rate", "path")} == {"rate": "0.5", "path": "'a = b'"}
    assert found["params"]["steps"] == "3"  # As it began; a parameter never changes there.
    assert json.loads(bytes.fromhex(found["files"]["config.json"]))["steps"] == 5
    assert (found["tags"]["run.recipe"], found["tags"]["run.parameters"]) == ("tiny", "12")
    assert found["history"]["loss"] == [[step, "2.5"] for step in range(1, 6)]
    assert found["history"]["eval/accuracy"] == [[3, "nan"], [5, "nan"]]
    files = {name: bytes.fromhex(content) for name, content in found["files"].items()}
    assert files["pictures/weights/changes/3.png"] == PNG
    assert json.loads(files["histograms/weights/up/5.json"]) == {"edges": [-1.0, 0.0, 2.0], "counts": [3, 5]}
    assert json.loads(files["tables/sample/all/3.json"])["data"][0] == ["Call me", 7, 2.5]
    assert files["texts/sample/3.txt"] == b"Call me [bold]Ishmael[/bold]."


@needs
@pytest.mark.long
@pytest.mark.parametrize("cfg", ["WandB", "MLflow"])
def test_names_from_users_are_no_paths_there_either_and_what_is_refused_does_not_end_a_run(cfg, tmp_path):
    program = f"""
observer = Guarded({cfg}.Config().build())
observer.start(run, 1, 2, "a run")
from dovetail.train import Findings, Histogram, Table
for name in NAMES:
    some = {{name: PNG}}, {{name: Histogram(EDGES, COUNTS)}}, {{name: Table(COLUMNS, ROWS)}}
    observer.shows(1, Findings({{}}, {{}}, *some))
observer.metrics(1, {{"loss": 1.0, "a b/%": 2.0}})
observer.stop()
print(json.dumps({{"done": True}}))
"""
    (tmp_path / "home").mkdir()
    assert ran(program, tmp_path / "home" / "run") == [{"done": True}]
    assert not list(tmp_path.glob("*escape*"))
    assert {path.name for path in tmp_path.iterdir()} == {"home"}


@needs
@pytest.mark.long
def test_a_server_that_is_not_there_is_said_once_and_the_run_goes_on(tmp_path):
    program = """
import contextlib, io
said = io.StringIO()
with contextlib.redirect_stderr(said):
    observer = Guarded(MLflow.Config(tracking_uri="http://127.0.0.1:9").build())
    observer.start(run, 1, 2, "a run")
    observer.metrics(1, {"loss": 1.0})
    observer.stop()
print(json.dumps({"said": [line for line in said.getvalue().splitlines() if "cannot write" in line]}))
"""
    (found,) = ran(program, tmp_path / "run", MLFLOW_HTTP_REQUEST_MAX_RETRIES="0", MLFLOW_HTTP_REQUEST_TIMEOUT="2")
    assert len(found["said"]) == 1
    assert found["said"][0].startswith("MLflow cannot write: MlflowException: ")
