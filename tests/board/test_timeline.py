# SPDX-License-Identifier: Apache-2.0
"""The ledger as a timeline: its spans sum to what the account says, and are in order."""

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.board._timeline import Ledgers, Span, Timeline, joined, told
from dovetail.progress import Ledger
from support.boards import START, write_ledger

TWO_LIVES: list[dict[str, Any]] = [
    {"event": "open", "life": "a", "wall": START},
    {"event": "resume", "life": "a", "wall": START + 3, "step": 0, "seconds": {"start": 3}},
    {"life": "a", "wall": START + 9, "step": 3, "seconds": {"start": 3, "step": 6}},
    {"life": "a", "wall": START + 14, "step": 5, "seconds": {"start": 3, "step": 10, "checkpoint": 1}},
    {"event": "open", "life": "b", "wall": START + 16, "gap": {"idle": 2}},
    {"event": "resume", "life": "b", "wall": START + 17, "step": 3, "seconds": {"start": 1}},
    {"life": "b", "wall": START + 20, "step": 6, "seconds": {"start": 1, "step": 3}, "ended": "stopped"},
]


def timeline_of(directory: Path) -> tuple[Timeline, Ledgers]:
    ledgers = Ledgers()
    with (directory / "goodput.jsonl").open("rb") as file:
        return ledgers.update(file.fileno()), ledgers


def sums(spans: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for span in spans:
        found[span["kind"]] = found.get(span["kind"], 0.0) + span["end"] - span["start"]
    return found


def test_what_was_lost_is_lost_where_it_was(tmp_path: Path) -> None:
    write_ledger(tmp_path, TWO_LIVES)
    found = timeline_of(tmp_path)[0].named([])
    shown = [(span["kind"], span["start"], span["end"], span["life"]) for span in found["spans"]]
    assert shown == [
        ("start", 0, 3, 1),
        ("step", 3, 9, 1),
        ("lost_work", 9, 14, 1),
        ("idle", 14, 16, 1),
        ("start", 16, 17, 2),
        ("step", 17, 20, 2),
    ]
    account = Ledger(tmp_path / "goodput.jsonl").update()
    assert found["kinds"] == pytest.approx(dict(account.seconds))
    assert sums(found["spans"]) == pytest.approx({kind: s for kind, s in account.seconds.items() if s})
    assert [(event["time"], event["kind"], event["text"]) for event in found["events"]] == [
        (17, "resumed", "start 2, goes on after step 3; 2 steps were lost"),
        (20, "stopped", "it was stopped after step 6"),
    ]


def test_a_rollback_within_a_start_is_an_event_and_its_steps_are_lost(tmp_path: Path) -> None:
    back = {
        "event": "resume",
        "life": "a",
        "wall": START + 15,
        "step": 4,
        "seconds": {"start": 3, "step": 10, "lost_work": 2},
    }
    write_ledger(tmp_path, [*TWO_LIVES[:3], {**TWO_LIVES[3], "seconds": {"start": 3, "step": 10}}, back])
    found = timeline_of(tmp_path)[0].named([])
    assert found["events"] == [{"time": 15, "kind": "rollback", "text": "went back to step 4; 1 steps were lost"}]
    account = Ledger(tmp_path / "goodput.jsonl").update()
    assert sums(found["spans"]) == pytest.approx({kind: s for kind, s in account.seconds.items() if s})


def test_a_ledger_is_read_on_as_it_grows_and_anew_if_it_was_replaced(tmp_path: Path) -> None:
    write_ledger(tmp_path, TWO_LIVES[:4])
    ledgers = Ledgers()
    with (tmp_path / "goodput.jsonl").open("rb") as file:
        assert ledgers.update(file.fileno()).account.starts == 1
        assert ledgers.restarts(file.fileno()) == []
        write_ledger(tmp_path, TWO_LIVES[4:])
        with (tmp_path / "goodput.jsonl").open("a") as torn:
            torn.write('{"event":"open","life":"c"')
        assert ledgers.update(file.fileno()).account.starts == 2
        assert ledgers.restarts(file.fileno()) == [START + 17]
        assert ledgers.first == START
    (tmp_path / "goodput.jsonl").unlink()
    write_ledger(tmp_path, TWO_LIVES[:2])
    with (tmp_path / "goodput.jsonl").open("rb") as file:
        assert ledgers.update(file.fileno()).account.starts == 1


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    write_ledger(tmp_path, TWO_LIVES)
    expected = timeline_of(tmp_path)[0].named([])
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    junk = [b"", b"null", b"[]", b"\xff", b'{"life":"b"}', b'{"event":"open","life":"b","wall":"x"}', b"[" * 70_000]
    lines = (tmp_path / "goodput.jsonl").read_bytes().splitlines()
    mixed = [line for each in lines for line in (*junk, each)]
    (damaged / "goodput.jsonl").write_bytes(b"\n".join(mixed) + b"\n")
    assert timeline_of(damaged)[0].named([]) == expected


def test_failures_are_where_they_were_noticed_in_the_time_of_the_run(tmp_path: Path) -> None:
    write_ledger(tmp_path, TWO_LIVES)
    failed = {"event": "failed", "rank": 3, "what": "exit", "step": 5, "text": "a\nOSError: gone\n", "detected": 11.0}
    events: list[dict[str, Any]] = [
        {"event": "launched", "time": START - 50, "clock": 1.0},
        {"event": "process", "time": START, "clock": 2.0},
        {**failed, "time": START + 16, "clock": 13.0},
        {"event": "over", "code": 1, "time": START + 99, "clock": 99.0},
        {"event": "host lost", "slot": "0", "time": START + 99, "clock": 99.0},
    ]
    data = b"".join(json.dumps(event).encode() + b"\n" for event in events) + b'{"event":"failed","time":[]}\nnull\n'
    found = timeline_of(tmp_path)[0].named(told(data))["events"]
    assert [(event["time"], event["kind"]) for event in found] == [
        (0, "launched"),
        (14, "failed"),
        (17, "resumed"),
        (20, "stopped"),
        (20, "over"),
    ]
    assert found[1]["text"] == "process 3 failed (exit) after step 5: OSError: gone"
    assert found[-1]["text"] == "the launch was over (exit code 1)"


def test_many_spans_are_joined_and_no_time_is_lost() -> None:
    kinds = ("step", "checkpoint", "evaluation")
    spans = [Span(kinds[i % 3], float(i), i + 1.0, 1 + i // 5000, i, i + 1) for i in range(10_000)]
    found = joined(spans, 200)
    assert len(found) <= 250
    assert [span.start for span in found[1:]] == pytest.approx([span.end for span in found[:-1]])
    for kind in kinds:
        assert sum(s.end - s.start for s in found if s.kind == kind) == pytest.approx(
            sum(s.end - s.start for s in spans if s.kind == kind)
        )
    assert {span.life for span in found} == {1, 2}
