# SPDX-License-Identifier: Apache-2.0
"""What is made of the directories of a sweep: states and values, the best, the table."""

import json
import math
from pathlib import Path

import pytest

from dovetail.cli._sweep_results import Best, Result, best, measured, result_of, table_of
from dovetail.launch import Record


def _run(directory: Path, *lines: str, code: int | None = 0) -> Path:
    (directory / "launch").mkdir(parents=True, exist_ok=True)
    (directory / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    over = "" if code is None else json.dumps({"event": "over", "code": code})
    (directory / "launch" / "events.jsonl").write_text(f'{{"event": "launched"}}\n{over}\n')
    return directory


def _steps(first: int, *losses: float | str) -> list[str]:
    return [json.dumps({"step": first + n, "loss": loss}) for n, loss in enumerate(losses)]


def test_the_training_loss_is_the_mean_of_the_last_ten_and_a_measurement_the_last_one(tmp_path):
    lines = [*_steps(1, *range(100, 80, -1)), '{"step": 9, "heldout/loss": 5}', '{"step": 20, "heldout/loss": 3}']
    run = _run(tmp_path, *lines)
    assert result_of(run, (), "loss") == Result((), "done", 20, 85.5)
    assert result_of(run, (), "heldout/loss").value == 3.0
    assert result_of(run, (), "lss").value is None
    assert measured(run) == ["heldout/loss", "loss"]


def test_steps_that_were_made_again_count_once(tmp_path):
    run = _run(tmp_path, *_steps(1, 9, 9, 9, 9), *_steps(3, 1, 1))
    assert result_of(run, (), "loss") == Result((), "done", 4, 5.0)


@pytest.mark.parametrize(
    "torn",
    ['{"step": 3, "lo', '{"step": "3", "loss": 1}', '{"step": true, "loss": 1}', "[1]", "null", '{"loss": 1}', "\\xff"],
)
def test_a_line_that_is_torn_or_not_ours_counts_not(tmp_path, torn):
    run = _run(tmp_path, *_steps(1, 2.0), torn, '{"step": 2, "loss": true}', '{"step": 2, "loss": "low"}')
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\x00 {")
    assert result_of(run, (), "loss") == Result((), "done", 2, 2.0)
    assert result_of(tmp_path / "nothing", (), "loss") == Result((), "waiting", 0, None)


@pytest.mark.parametrize("word", ["nan", "inf", "-inf"])
def test_a_run_that_has_diverged_has_no_earlier_value_and_is_not_the_best(tmp_path, word):
    diverged = result_of(_run(tmp_path, *_steps(1, 1.0, 1.0, word)), ("a=1",), "loss")
    assert diverged.value is not None
    assert not math.isfinite(diverged.value)
    assert best([diverged, Result(("a=2",), "done", 3, 9.0)], "loss") == Best(("a=2",), 9.0, 1)
    assert best([diverged], "loss") is None


@pytest.mark.parametrize(
    "code, told, state",
    [
        (0, None, "done"),
        (85, None, "saved"),
        (1, None, "ended with 1"),
        (85, "waiting", "waiting"),  # Its engine starts it again.
        (1, "failed", "ended with 1"),
        (None, "running", "running"),
        (None, "cancelled", "cancelled"),
        (0, "running", "done"),
    ],
)
def test_the_state_is_what_the_directory_says_or_the_engine_while_it_has_the_job(tmp_path, code, told, state):
    run = _run(tmp_path, code=code)
    assert result_of(run, (), "loss", {} if told is None else {str(run): told}).state == state


def test_a_run_whose_process_is_gone_does_not_run(tmp_path):
    run = _run(tmp_path, code=None)
    Record("local", "elsewhere-1", "a", str(run)).write()
    assert result_of(run, (), "loss").state != "running"


def test_the_best_is_by_the_mean_over_seeds_of_combinations_that_are_complete():
    def row(a: int, seed: int, value: float | None, state: str = "done") -> Result:
        return Result((f"a={a}", f"seed={seed}"), state, 9, value)

    rows = [row(1, 0, 1.0), row(1, 1, 4.0), row(2, 0, 2.0), row(2, 1, 2.5)]
    assert best(rows, "loss") == Best(("a=2",), 2.25, 2)
    assert best(rows, "heldout/accuracy") == Best(("a=1",), 2.5, 2)
    assert best([*rows, row(3, 0, 0.1), row(3, 1, 0.1, "saved")], "loss") == Best(("a=2",), 2.25, 2)
    assert best([*rows, row(3, 0, 0.1), row(3, 1, None)], "loss") == Best(("a=2",), 2.25, 2)
    assert best([], "loss") is None
    assert best([Result(("seed=0",), "done", 1, 1.0)], "loss") == Best((), 1.0, 1)


def test_the_table_has_a_column_for_each_path():
    rows = [Result(("a.b=1e-3", "seed=0"), "done", 1200, 2.34567), Result(("a.b=2", "seed=0"), "waiting", 0, None)]
    assert table_of(rows, "loss").splitlines() == [
        "a.b   seed  state     step   loss",
        "1e-3     0  done     1,200  2.346",
        "2        0  waiting      0      -",
    ]
