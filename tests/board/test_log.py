# SPDX-License-Identifier: Apache-2.0
"""The log of a run: its last lines, errors known as such, and no character that moves a cursor."""

from pathlib import Path

import pytest

from dovetail.board._log import log_of
from dovetail.board._root import Root


def levels(text: str, directory: Path) -> list[tuple[str, str]]:
    (directory / "launch").mkdir(exist_ok=True)
    (directory / "launch/0.log").write_text(text, newline="")
    return [(line["level"], line["text"]) for line in log_of(Root(directory), ".", [], 100, None)["lines"]]


def test_a_trace_is_an_error_to_its_end(tmp_path: Path) -> None:
    text = "step 1\nTraceback (most recent call last):\n  File x\n    y\nValueError: no\nstep 2\nWARNING: slow\n"
    assert [level for level, _ in levels(text, tmp_path)] == ["info", *["error"] * 4, "info", "warning"]


@pytest.mark.parametrize("line", ["no error here", "errors 0", "loss 2.0 error_rate 0.1", "Terror: a film of 1978"])
def test_not_every_word_is_an_error(tmp_path: Path, line: str) -> None:
    assert levels(f"{line}\n", tmp_path) == [("info", line)]


@pytest.mark.parametrize(
    "line", ["RuntimeError: no", "[3] error: no", "E1119 10:00:00 x.cc:3] no", "jax.errors.X: Error"]
)
def test_errors_of_many_kinds_are_known(tmp_path: Path, line: str) -> None:
    assert levels(f"{line}\n", tmp_path) == [("error", line)]


def test_characters_that_control_a_terminal_are_gone_and_bars_are_at_their_last(tmp_path: Path) -> None:
    text = "\x1b[31mred\x1b[0m\x07\nstep 1/9\rstep 2/9\rstep 9/9\r\nlast"
    assert [text for _, text in levels(text, tmp_path)] == ["red", "step 9/9", "last"]


def test_the_log_of_the_first_process_is_shown_and_others_by_name(tmp_path: Path) -> None:
    (tmp_path / "launch").mkdir()
    for name in ("0.log", "10.log", "2.log", "job-5.log", "events.jsonl", "evil name.log"):
        (tmp_path / "launch" / name).write_text(f"this is {name}\n")
    (tmp_path / "launch/secret.log").symlink_to("/etc/passwd")
    (tmp_path / "train.log").write_text("mine\n")
    found = log_of(Root(tmp_path), ".", [], 100, None)
    assert found["files"][:3] == ["launch/0.log", "launch/2.log", "launch/10.log"]
    assert set(found["files"][3:]) == {"launch/job-5.log", "train.log"}
    assert [line["text"] for line in found["lines"]] == ["this is 0.log"]
    other = log_of(Root(tmp_path), ".", [], 100, "launch/10.log")
    assert [line["text"] for line in other["lines"]] == ["this is 10.log"]
    for hostile in ("launch/events.jsonl", "launch/secret.log", "../x.log", "/etc/passwd", "launch/evil name.log"):
        with pytest.raises(ValueError, match="The run has no log"):
            log_of(Root(tmp_path), ".", [], 100, hostile)


def test_what_went_wrong_comes_first_and_many_lines_are_cut(tmp_path: Path) -> None:
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/report.txt").write_text("The run ends: why.\n")
    (tmp_path / "launch/0.log").write_text("".join(f"line {i}\n" for i in range(50)))
    events = [
        {"wall": 5.0, "kind": "failed", "text": "process 1 failed"},
        {"wall": 6.0, "kind": "over", "text": "over"},
    ]
    lines = log_of(Root(tmp_path), ".", events, 10, None)["lines"]
    assert lines[0] == {"time": 5.0, "level": "error", "text": "process 1 failed"}
    assert [(each["time"], each["level"]) for each in lines[1:3]] == [(6.0, "info"), (None, "error")]
    assert [each["text"] for each in lines[3:]] == [
        "... the last lines of launch/0.log ...",
        *[f"line {i}" for i in range(40, 50)],
    ]


def test_a_run_without_logs_has_none(tmp_path: Path) -> None:
    assert log_of(Root(tmp_path), ".", [], 10, None) == {"lines": [], "files": []}
