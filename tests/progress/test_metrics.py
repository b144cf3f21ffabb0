# SPDX-License-Identifier: Apache-2.0
"""What a run has measured, read back."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from dovetail.progress import Metrics, read_metrics


def _write(directory, *records, ledger=()):
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records) + '{"step": 9')
    (directory / "goodput.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in ledger))
    return read_metrics(directory)


def _step(step, loss, **more):
    return {"step": step, "time": 1000.0 + step, "loss": loss, **more}


def test_metrics_are_columns_and_words_are_numbers_that_json_has_not(tmp_path):
    found = _write(tmp_path, _step(1, 2.5), _step(2, "nan"), {"step": 2, "time": 1003.0, "eval/loss": "-inf"})
    assert found.columns["loss"].steps == [1, 2]
    assert math.isnan(found.columns["loss"].values[1])
    assert found.columns["eval/loss"].values == [-math.inf]


def test_texts_are_kept_apart(tmp_path):
    found = _write(tmp_path, _step(1, 2.5), {"step": 1, "time": 5.0, "sample": "Once"})
    assert [(each.step, each.text) for each in found.texts["sample"]] == [(1, "Once")]
    assert "sample" not in found.columns


def test_steps_that_were_lost_are_left_out_and_the_restart_is_known(tmp_path):
    ledger = [
        {"event": "open", "wall": 900.0},
        {"event": "resume", "wall": 901.0, "step": 0},
        {"event": "open", "wall": 1100.0},
        {"event": "resume", "wall": 1101.0, "step": 15},
    ]
    records = [_step(10, 3.0), _step(20, 2.0), _step(30, 1.0), {"step": 30, "time": 0.0, "eval/loss": 1.0}]
    found = _write(tmp_path, *records, _step(20, 2.2), _step(30, 1.1), ledger=ledger)
    assert found.columns["loss"].steps == [10, 20, 30]
    assert found.columns["loss"].values == [3.0, 2.2, 1.1]
    assert "eval/loss" not in found.columns  # It was lost with its step.
    assert (found.restarts, found.start) == ([15], 900.0)


def test_without_a_ledger_a_restart_is_where_steps_go_back(tmp_path):
    assert _write(tmp_path, _step(10, 3.0), _step(30, 2.0), _step(20, 2.5), _step(30, 2.0)).restarts == [19]


def test_a_step_that_is_measured_again_counts_once_and_takes_nothing_else_with_it(tmp_path):
    found = _write(tmp_path, _step(10, 3.0), {"step": 10, "eval/loss": 3.5}, {"step": 10, "eval/loss": 3.4})
    assert found.columns["eval/loss"].values == [3.4]
    assert found.columns["loss"].values == [3.0]


def test_units_are_summed_over_steps_between_two_lines(tmp_path):
    records = [_step(1, 3.0, tokens=100, tokens_per_second=5.0), _step(11, 2.0, tokens=200, tokens_per_second=5.0)]
    found = _write(tmp_path, *records, {"step": 6, "time": 1006.0, "eval/loss": 2.0}, *records[1:])
    assert found.unit == "tokens"
    assert found.x("loss", "units") == [100.0, 2100.0]
    assert found.at(6, "units") == 1100.0
    assert found.x("loss", "step") == [1.0, 11.0]
    assert found.x("loss", "time") == [0.0, 10.0]


_VALUES = st.one_of(st.floats(), st.integers(), st.text(), st.booleans(), st.none(), st.lists(st.integers()))


@given(st.lists(st.dictionaries(st.sampled_from(["step", "time", "loss", "tokens", "tokens_per_second"]), _VALUES)))
def test_whatever_is_written_steps_only_grow(records):
    found = Metrics()
    for each in records:
        found.add(each)
    found.finish([], None)
    for name, (steps, times, values) in found.columns.items():
        assert steps == sorted(set(steps))
        assert len(steps) == len(times) == len(values) == len(found.x(name, "units"))
