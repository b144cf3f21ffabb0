# SPDX-License-Identifier: Apache-2.0
"""What a scheduler writes down of a job, and what the metrics of its run say."""

import json

import pytest

from dovetail.launch.schedule._past import Past, note_event, past_of
from dovetail.launch.schedule._progress import Progress, progress_of

A, B = ("a", 4), ("b", 8)


def test_events_add_up_to_where_a_job_is_how_long_it_ran_and_how_fast(tmp_path):
    file = tmp_path / "state" / "job.jsonl"
    assert past_of(file) == Past()
    note_event(file, "arrived", 10.0)
    assert past_of(file) == Past(arrived=10.0)
    note_event(file, "start", 12.0, A, offset=77)
    assert past_of(file) == Past(arrived=10.0, at=A, since=12.0, offset=77, starts=1)
    assert past_of(file).ran_until(20.0) == 8.0
    note_event(file, "started", 13.0)
    assert past_of(file).is_sure
    note_event(file, "stop", 32.0, A, rate=1.5)
    assert past_of(file) == Past(arrived=10.0, since=12.0, is_sure=True, offset=77, starts=1, ran=20.0, rates={A: 1.5})
    note_event(file, "start", 40.0, B)
    note_event(file, "stop", 45.0, B)  # Too short to be measured.
    note_event(file, "arrived", 99.0)  # Once is enough.
    past = past_of(file)
    assert not past.is_sure
    assert (past.arrived, past.ran, past.starts, past.rates) == (10.0, 25.0, 2, {A: 1.5})
    assert past.ran_until(1e9) == 25.0


@pytest.mark.parametrize("torn", range(1, 60, 7))
def test_a_torn_line_counts_not_and_spoils_no_other(tmp_path, torn):
    file = tmp_path / "job.jsonl"
    note_event(file, "arrived", 10.0)
    whole = file.read_bytes()
    note_event(file, "start", 12.0, A, offset=0)
    line = file.read_bytes()[len(whole) :]
    file.write_bytes(whole + line[:torn])
    assert past_of(file).at is None
    note_event(file, "start", 15.0, B)
    assert past_of(file) == Past(arrived=10.0, at=B, since=15.0, starts=1)


def lines(*records) -> bytes:
    return b"".join(json.dumps({"time": time, "step": step, "loss": 1.0}).encode() + b"\n" for time, step in records)


def test_a_rate_is_of_steps_that_were_kept_since_an_offset(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert progress_of(tmp_path, 0) == Progress()
    before = lines((100.0, 10), (110.0, 60))
    file.write_bytes(before)
    assert progress_of(tmp_path, 0) == Progress(60, 5.0, len(before))
    assert progress_of(tmp_path, len(before)) == Progress(60, None, len(before))
    # The clock of another host is behind; ten steps are lost and made again.
    after = lines((50.0, 70), (60.0, 90), (62.0, 80), (70.0, 100))
    file.write_bytes(before + after + b'{"time": 80.0, "st')
    assert progress_of(tmp_path, len(before))[:2] == (100, 1.5)


def test_of_few_steps_no_rate_is_known(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(lines((1.0, 1), (2.0, 3)) + b'[1]\n{"step": "x"}\n7\n')
    assert progress_of(tmp_path, 0)[:2] == (3, None)
