# SPDX-License-Identifier: Apache-2.0
"""How a run is, told from the heads and tails of its files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dovetail.board import DirectoryRuns
from dovetail.board._root import Root
from dovetail.board._summary import facts_of, run_of, stamp_of
from support.boards import START, write_ledger, write_metrics, write_run

OPEN = {"event": "open", "life": "a", "wall": START}
AT = {"life": "a", "step": 20, "wall": START + 21, "seconds": {"step": 20.0}}


def run_in(directory: Path, *, quiet: float = 1.0, name: str = "run") -> dict[str, Any]:
    """Returns what the list says when the files were written some seconds ago."""
    now = START + 1000.0
    for file in (directory / name).rglob("*"):
        os.utime(file, (now - quiet, now - quiet))
    return run_of(name, name, facts_of(Root(directory), name), now)


def write_events(directory: Path, *events: dict[str, Any]) -> None:
    (directory / "launch").mkdir(exist_ok=True)
    lines = [json.dumps({"time": START + i, "clock": 5.0 + i, **event}) for i, event in enumerate(events)]
    (directory / "launch/events.jsonl").write_text("\n".join(lines) + "\n")


def test_a_run_that_goes_on_says_how_far_it_is_and_what_is_left(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 20, mfu=0.4, data_wait=0.125)
    write_ledger(tmp_path / "run", [OPEN, AT])
    found = run_in(tmp_path)
    assert found["state"] == "running"
    assert (found["step"], found["steps"], found["seconds_left"]) == (20, 100, 80.0)
    assert (found["loss"], found["rate"], found["unit"], found["mfu"]) == (0.5, 640.0, "token", 0.4)
    assert (found["started"], found["updated"], found["seconds"]) == (START, START + 21, 21)
    assert (found["phase"], found["error"], found["problems"]) == ("step", None, [])
    assert found["last"] == {"loss": 0.5, "goodput": 0.5, "mfu": 0.4, "data_wait": 0.125, "eval/loss": 1.5}


@pytest.mark.parametrize("ended", ["done", "stopped", "failed"])
def test_a_run_that_said_goodbye_is_what_it_said(tmp_path: Path, ended: str) -> None:
    write_ledger(write_run(tmp_path / "run"), [OPEN, {**AT, "ended": ended}])
    found = run_in(tmp_path)
    assert (found["state"], found["phase"], found["seconds_left"]) == (ended, None, None)


def test_a_run_without_a_sign_of_life_is_lost(tmp_path: Path) -> None:
    write_ledger(write_run(tmp_path / "run"), [OPEN, AT])
    assert run_in(tmp_path, quiet=59)["state"] == "running"
    assert run_in(tmp_path, quiet=61)["state"] == "lost"
    assert run_in(tmp_path, quiet=-500)["state"] == "running"  # The clock of the file system is ahead.


def test_a_run_without_a_ledger_is_judged_by_its_metrics(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 20)
    assert run_in(tmp_path)["state"] == "running"
    assert run_in(tmp_path, quiet=100)["state"] == "lost"
    write_run(tmp_path / "all", 100)
    assert run_in(tmp_path, quiet=100, name="all")["state"] == "done"


def test_a_config_alone_is_an_empty_run_and_checkpoints_alone_say_a_step(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.txt").write_text("steps = 7\n")
    assert (run_in(tmp_path)["state"], run_in(tmp_path)["steps"]) == ("empty", 7)
    (tmp_path / "run/metrics.jsonl").touch()
    assert run_in(tmp_path)["state"] == "empty"
    (tmp_path / "imported/checkpoints/step_3").mkdir(parents=True)
    (tmp_path / "imported/checkpoints/step_12").mkdir()
    assert run_in(tmp_path, name="imported", quiet=999)["step"] == 12


@pytest.mark.parametrize("code, state", [(0, "done"), (85, "stopped"), (1, "failed"), (86, "failed"), (None, "failed")])
def test_a_supervisor_has_the_last_word(tmp_path: Path, code: int | None, state: str) -> None:
    write_ledger(write_run(tmp_path / "run"), [OPEN, AT])
    failed = {"event": "failed", "rank": 1, "what": "exit", "text": "Traceback ...\nValueError: no\n"}
    hosts_go = {"event": "host lost", "slot": "0"}
    write_events(tmp_path / "run", {"event": "launched"}, failed, {"event": "over", "code": code}, hosts_go)
    found = run_in(tmp_path)
    assert found["state"] == state
    assert found["error"] == ("ValueError: no" if state == "failed" else None)


def test_a_run_that_went_on_after_its_launch_is_not_over(tmp_path: Path) -> None:
    write_ledger(write_run(tmp_path / "run"), [OPEN, {**AT, "wall": START + 900}])
    write_events(tmp_path / "run", {"event": "launched"}, {"event": "over", "code": 1})
    assert run_in(tmp_path)["state"] == "running"


def test_a_run_between_a_failure_and_the_next_start_is_running(tmp_path: Path) -> None:
    write_ledger(write_run(tmp_path / "run"), [OPEN, {**AT, "ended": "failed"}])
    failed = {"event": "failed", "text": "RuntimeError: lost", "time": START + 22}
    write_events(tmp_path / "run", {"event": "launched"}, failed)
    assert run_in(tmp_path, quiet=100)["state"] == "running"
    assert run_in(tmp_path, quiet=1000)["state"] == "lost"


def test_a_goodbye_that_no_supervisor_notices_is_the_last_word(tmp_path: Path) -> None:
    write_ledger(write_run(tmp_path / "run"), [OPEN, {**AT, "wall": START + 900, "ended": "stopped"}])
    write_events(tmp_path / "run", {"event": "launched"})  # Its supervisor was killed, and the run went on without.
    assert run_in(tmp_path, quiet=5)["state"] == "running"
    assert run_in(tmp_path, quiet=20)["state"] == "stopped"


def test_a_report_is_the_error_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    write_events(tmp_path / "run", {"event": "launched"}, {"event": "over", "code": 1})
    (tmp_path / "run/launch/report.txt").write_text("The run ends: no host can start a process.\n  slot 0\n")
    assert run_in(tmp_path)["error"] == "The run ends: no host can start a process."


def test_after_a_rollback_the_step_is_the_one_that_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 20)
    write_metrics(tmp_path / "run", [{"step": 8, "loss": 3.0, "time": START + 30}, {"step": 9, "loss": 2.0}])
    found = run_in(tmp_path)
    assert (found["step"], found["loss"]) == (9, 2.0)


def test_values_that_json_has_no_word_for_are_words(tmp_path: Path) -> None:
    write_metrics(tmp_path / "run", [{"step": 1, "loss": "nan", "eval/x": "-inf"}])
    found = run_in(tmp_path)
    assert (found["loss"], found["last"]["eval/x"]) == ("nan", "-inf")


DAMAGE = [
    b"",
    b"\n\n\n",
    b"no json\n",
    b'{"step": 1',
    b'{"step": "x", "time": 1.0, "loss": 2}\n',
    b'{"step": 1, "time": "nan", "loss": 2}\n',
    b"[1, 2]\nnull\n3\n",
    b"\xff\xfe\x00" * 1000,
    b'{"step": 99999999999999999999999, "time": 1.0}\n',
    b"[" * 100_000 + b"\n",
    b'{"event":"open"}\n{"life":3,"wall":"x"}\n',
    b'{"event":"failed","time":"x"}\n{"event":7,"time":1}\n',
    b'{"wall":1e400,"step":-5,"kind":[],"ended":{}}\n',
]


@pytest.mark.parametrize("data", DAMAGE, ids=range(len(DAMAGE)))
def test_no_file_however_damaged_keeps_a_run_from_being_listed(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "run/launch").mkdir(parents=True)
    for name in ("metrics.jsonl", "goodput.jsonl", "config.txt", "launch/events.jsonl", "launch/job.json"):
        (tmp_path / "run" / name).write_bytes(data)
    json.dumps(run_in(tmp_path))


def test_a_file_that_is_no_regular_one_is_a_problem_and_not_read(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    (tmp_path / "run/metrics.jsonl").rename(tmp_path / "elsewhere")
    (tmp_path / "run/metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    found = run_of("run", "run", facts_of(Root(tmp_path), "run"), START)
    assert found["problems"] == ["metrics.jsonl is not a regular file, and is not read. Links are not followed."]
    assert found["loss"] is None


def test_what_was_launched_is_known_from_the_record_of_the_job(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    (tmp_path / "run/launch").mkdir()
    files = {"job.sh": "srun dovetail train llama2-7b steps=5 --on tpu-v5p-512\n"}
    (tmp_path / "run/launch/job.json").write_text(json.dumps({"files": files}, indent=1))
    facts = facts_of(Root(tmp_path), "run")
    assert (facts.recipe, facts.hardware) == ("llama2-7b", "tpu-v5p-512")


def test_a_stamp_changes_with_any_file_and_is_empty_for_a_run_that_is_gone(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    root = Root(tmp_path)
    before = stamp_of(root, "run")
    assert stamp_of(root, "run") == before
    write_metrics(tmp_path / "run", [{"step": 4, "loss": 1.0}])
    assert stamp_of(root, "run") != before
    assert stamp_of(root, "nowhere") == ()


def test_an_evaluation_far_from_the_end_is_found_later_and_kept_as_the_file_grows(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 5)
    write_metrics(tmp_path / "run", [{"step": step, "loss": 1.0, "x": 0.123456789} for step in range(6, 2000)])
    runs = DirectoryRuns(tmp_path)
    assert "eval/loss" not in runs.listed()["runs"][0]["last"]
    before = runs.stamps()
    assert runs.listed()["runs"][0]["last"]["eval/loss"] == 1.5
    assert runs.stamps() == before  # They say that it was found.
    write_metrics(tmp_path / "run", [{"step": 2000, "loss": 0.5}])
    last = runs.listed()["runs"][0]["last"]
    assert (last["eval/loss"], last["loss"]) == (1.5, 0.5)
    write_metrics(tmp_path / "run", [{"step": 2000, "eval/loss": 1.25}])
    assert runs.listed()["runs"][0]["last"]["eval/loss"] == 1.25
    runs.close()
