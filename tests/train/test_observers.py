# SPDX-License-Identifier: Apache-2.0
"""Observers: what is reported can be read back from the files and from the terminal."""

import io
import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from dovetail.progress import phase, quiet
from dovetail.train import JsonLines, Observer, TensorBoard, Terminal
from dovetail.train import _terminal as observers
from dovetail.train._observer import file_name
from support.observing import COLUMNS, COUNTS, EDGES, METRICS, NAMES, PNG, ROWS, drive, pixels
from support.terminal import screen


class Short(Observer):
    """As users have written them: it knows of nothing that came later."""

    def start(self, directory, first_step, last_step, about):
        self.file = (directory / "short.txt").open("a")

    def metrics(self, step, values):
        self.file.write(f"{step}\n")

    def text(self, step, name, value):
        self.file.write(f"{name}\n")

    def stop(self):
        self.file.close()


ALL = [JsonLines.Config(), TensorBoard.Config(), Terminal.Config(), Short.Config()]


@pytest.mark.parametrize("cfg", ALL, ids=lambda c: c._label())
def test_an_observer_can_be_started_again_where_a_run_goes_on(cfg, tmp_path):
    drive(cfg.build(), tmp_path)
    drive(cfg.build(), tmp_path, first=4, last=5)


@pytest.mark.parametrize("cfg", ALL, ids=lambda c: c._label())
def test_names_from_users_are_no_paths_and_harm_nothing(cfg, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    observer = cfg.build()
    observer.start(run, 1, 2, "a run")
    for name in NAMES:
        observer.picture(1, name, PNG)
        observer.histogram(1, name, EDGES, COUNTS)
        observer.table(1, name, COLUMNS, ROWS)
        observer.text(1, name or "empty", "text")
    observer.stop()
    assert list(tmp_path.iterdir()) == [run]


def test_json_lines_keep_pictures_as_files_and_tables_and_histograms_in_lines(tmp_path):
    drive(JsonLines.Config().build(), tmp_path)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    found = {kind: record for record in records for kind in ("pictures", "tables", "histograms") if kind in record}
    assert {record["step"] for record in found.values()} == {3}
    assert found["pictures"]["pictures"] == {"weights/changes": "pictures/weights/changes/3.png"}
    assert pixels((tmp_path / "pictures/weights/changes/3.png").read_bytes()).tolist() == pixels(PNG).tolist()
    assert found["histograms"]["histograms"] == {"weights/up": {"edges": EDGES, "counts": COUNTS}}
    rows = [ROWS[0], [*ROWS[1][:2], "nan"]]
    assert found["tables"]["tables"] == {"sample/all": {"columns": COLUMNS, "rows": rows}}


@given(st.lists(st.text(max_size=150), min_size=2, max_size=2, unique=True))
def test_file_names_stay_inside_and_apart(names):
    found = [file_name(name) for name in names]
    assert found[0] != found[1]
    for each in found:
        assert re.fullmatch(r"[A-Za-z0-9._=+-]+(/[A-Za-z0-9._=+-]+)*", each)
        assert ".." not in each.split("/")
        assert len(each) < 120
        assert file_name(each) == each or "-" in each


def test_json_lines_hold_every_value_and_a_resumed_run_appends(tmp_path):
    drive(JsonLines.Config().build(), tmp_path)
    drive(JsonLines.Config().build(), tmp_path, first=4, last=5)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    records = [r for r in records if not {"pictures", "tables", "histograms"} & set(r)]
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
    values = {v.tag: v for e in events for v in e.summary.value}
    image, histogram = values["weights/changes"].image, values["weights/up"].histo
    assert (image.height, image.width, image.encoded_image_string) == (2, 3, PNG)
    assert (list(histogram.bucket_limit), list(histogram.bucket), histogram.num) == (EDGES[1:], COUNTS, 8)
    assert b"| Call me | 7 | 2.5 |" in values["sample/all/text_summary"].tensor.string_val[0]


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
        "step 3  sample/all:\n"
        "prompt   tokens  loss\nCall me  7       2.5\na | b c  8       nan\n\n"
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
        assert lines[1:4] == ["step 3  sample:", "Call me [bold]Ishmael[/bold].", ""]


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
