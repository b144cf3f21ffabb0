# SPDX-License-Identifier: Apache-2.0
"""Observers: what is reported can be read back from the files and from the terminal."""

import io
import json
import re
import time

import pytest
from rich.console import Console
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from dovetail.progress import phase, quiet
from dovetail.train import JsonLines, Observer, TensorBoard, Terminal
from dovetail.train import _observers as observers
from support.terminal import screen

METRICS = {"loss": 2.5, "tokens_per_second": 12345.6, "mfu": 0.256}


def drive(observer: Observer, directory, first=1, last=3):
    observer.start(directory, first, last, "a run")
    for step in range(first, last + 1):
        observer.metrics(step, METRICS)
    observer.metrics(last, {"eval/loss": 2.25, "eval/accuracy": float("nan")})
    observer.text(last, "sample", "Call me [bold]Ishmael[/bold].")
    observer.stop()


@pytest.mark.parametrize("cfg", [JsonLines.Config(), TensorBoard.Config(), Terminal.Config()], ids=lambda c: c._label())
def test_an_observer_can_be_started_again_where_a_run_goes_on(cfg, tmp_path):
    drive(cfg.build(), tmp_path)
    drive(cfg.build(), tmp_path, first=4, last=5)


def test_json_lines_hold_every_value_and_a_resumed_run_appends(tmp_path):
    drive(JsonLines.Config().build(), tmp_path)
    drive(JsonLines.Config().build(), tmp_path, first=4, last=5)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [1, 2, 3, 3, 3, 4, 5, 5, 5]
    assert {name: records[0][name] for name in METRICS} == METRICS
    assert records[3]["eval/accuracy"] == "nan"
    assert records[4]["sample"] == "Call me [bold]Ishmael[/bold]."


def test_tensorboard_files_hold_every_value(tmp_path):
    drive(TensorBoard.Config().build(), tmp_path)
    (file,) = (tmp_path / "tensorboard").iterdir()
    data, events = file.read_bytes(), []
    while data:  # A record is its length, a checksum of that, the event, and a checksum of it.
        size = int.from_bytes(data[:8], "little")
        body = data[12 : 12 + size]
        assert int.from_bytes(data[12 + size : 16 + size], "little") == masked_crc32c(body)
        events.append(event_pb2.Event.FromString(body))  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
        data = data[16 + size :]
    found = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value if v.HasField("simple_value")]
    assert (2, "loss", 2.5) in found
    assert (3, "eval/loss", 2.25) in found
    assert len([tag for _, tag, _ in found if tag == "loss"]) == 3


def test_without_a_terminal_a_line_is_printed_now_and_then_however_long(tmp_path, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(observers, "Console", lambda: Console(file=out, force_terminal=False, width=20))
    drive(Terminal.Config(seconds=1000.0).build(), tmp_path)
    assert out.getvalue() == (
        "a run\n"
        "step 1/3  loss 2.500  12,346 tokens/s  MFU 25.6 %\n"
        "step 3/3  loss 2.500  12,346 tokens/s  MFU 25.6 %\n"
        "step 3/3  eval/loss 2.250  eval/accuracy nan\n"
        "step 3  sample:\n"
        "Call me [bold]Ishmael[/bold].\n\n"
    )


def test_a_terminal_shows_a_bar(tmp_path, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(observers, "Console", lambda: Console(file=out, force_terminal=True, width=120))
    drive(Terminal.Config().build(), tmp_path)
    assert "step 3/3" in out.getvalue()
    assert "12,346 tokens/s" in out.getvalue()


def test_of_a_terminal_the_bar_goes_away_and_the_last_figures_stay_even_when_interrupted(tmp_path, monkeypatch):
    for last_step, stays in ((3, "step 3/3  loss 2.500"), (9, "step 3/9  loss 2.500")):
        out = io.StringIO()
        monkeypatch.setattr(observers, "Console", lambda out=out: Console(file=out, force_terminal=True, width=120))
        observer = Terminal.Config().build()
        observer.start(tmp_path, 1, last_step, "a run")
        observer.metrics(3, METRICS)
        observer.stop()
        shown = screen(re.sub(r"\x1b\[(\?25.|[\d;]*m)", "", out.getvalue()), 120)
        assert [line for line in shown if line] == ["a run", f"{stays}  12,346 tokens/s  MFU 25.6 %"]


def test_where_nobody_wants_to_see_progress_only_what_was_found_is_printed(tmp_path, monkeypatch):
    for terminal in (True, False):
        out = io.StringIO()
        monkeypatch.setattr(
            observers, "Console", lambda out=out, terminal=terminal: Console(file=out, force_terminal=terminal)
        )
        with quiet():
            drive(Terminal.Config().build(), tmp_path)
        lines = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", out.getvalue()).splitlines()
        assert lines[0].startswith("step 3/3  eval/loss 2.250")
        assert lines[1:] == ["step 3  sample:", "Call me [bold]Ishmael[/bold].", ""]


@pytest.mark.parametrize("code", ["\x1b]0;title\x07", "\x9b2J", "\r", "\u202e"])
def test_what_a_model_writes_does_not_reach_the_terminal_as_a_command(code, tmp_path, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(observers, "Console", lambda: Console(file=out, force_terminal=False, width=100))
    for cfg in (Terminal.Config(), JsonLines.Config()):
        observer = cfg.build()
        observer.start(tmp_path, 1, 2, "a run")
        observer.text(1, "sample", f"a{code}b\tc\nd")
        observer.stop()
    written = (tmp_path / "metrics.jsonl").read_text()
    assert code[0] not in out.getvalue() + written
    assert ascii(code)[1:-1] + "b" in out.getvalue()
    assert json.loads(written)["sample"] == f"a{code}b\tc\nd"


def test_a_terminal_says_what_is_done_before_the_first_step_and_how_long_it_took(tmp_path, monkeypatch):
    out, now = io.StringIO(), [100.0]
    monkeypatch.setattr(observers, "Console", lambda: Console(file=out, force_terminal=True, width=100))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    observer = Terminal.Config().build()
    observer.start(tmp_path, 1, 3, "a run")
    with phase("compiling"):
        now[0] += 12
        observer._progress.refresh()
    observer.metrics(1, METRICS)
    with phase("evaluating"):
        now[0] += 7
    observer.stop()
    shown = out.getvalue()
    assert "compiling ... 12 s" in shown
    assert "compiling took 12 s\n" in shown.replace("\r", "")
    assert "evaluating took" not in shown
