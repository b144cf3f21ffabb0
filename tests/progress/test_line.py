# SPDX-License-Identifier: Apache-2.0
"""The line that says what goes on: in a terminal it is written over, elsewhere there are few."""

import io
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.progress import Count, Line, note, phase, showing
from dovetail.progress._line_text import Running, columns
from dovetail.progress._line_text import line as text_of


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def screen(stream):
    """Returns what a terminal shows: a line that is erased leaves nothing."""
    return [line.rpartition("\r\x1b[2K")[2] for line in stream.getvalue().split("\n")]


def test_a_terminal_shows_the_phase_at_once_then_its_time_then_one_line_that_stays(clock):
    out = Terminal()
    line = Line(out, clock=clock)
    line.started("compiling")
    assert screen(out) == ["compiling ..."]
    clock.now += 12
    line.tick()
    assert screen(out) == ["compiling ... 12 s"]
    line.ended("compiling", 12.3)
    assert screen(out) == ["compiling took 12 s", ""]


def test_a_terminal_keeps_nothing_of_what_was_short_or_failed(clock):
    out = Terminal()
    line = Line(out, clock=clock)
    line.started("importing")
    line.ended("importing", 0.2)
    line.started("compiling")
    line.ended("compiling", None)
    assert screen(out) == [""]


def test_after_an_inner_phase_the_outer_one_is_shown_again(clock):
    out = Terminal()
    line = Line(out, clock=clock)
    line.started("evaluating")
    line.started("compiling")
    clock.now += 3
    line.ended("compiling", 3.0)
    assert screen(out) == ["compiling took 3.0 s", "evaluating ... 3.0 s"]


def test_a_pipe_gets_a_line_within_a_second_one_every_ten_seconds_and_one_at_the_end(clock):
    out = io.StringIO()
    line = Line(out, clock=clock)
    line.started("compiling")
    assert out.getvalue() == ""
    for _ in range(300):
        clock.now += 0.1
        line.tick()
    line.ended("compiling", 30.0)
    assert out.getvalue().splitlines() == [
        "compiling ...",
        "compiling ... 11 s",
        "compiling ... 21 s",
        "compiling took 30 s",
    ]


def begin(line, name, total, unit="", done=0):
    line.started(name)
    line.counts(count := Count(total, unit, done))
    return count


def test_what_counts_says_how_far_it_is_how_fast_and_how_long_still(clock):
    out = Terminal()
    line = Line(out, clock=clock)
    count = begin(line, "restoring", 4e9, "bytes")
    clock.now += 10
    count.advance(1e9)
    line.tick()
    assert screen(out) == ["restoring ... 25 %, 1.0 of 4.0 GB, 100 MB/s, 10 s, 30 s left"]


def test_what_is_done_has_nothing_left(clock):
    count = Count(10, "rows")
    count.advance(10)
    assert text_of([Running("reading", 90.0, count)], 100.0) == "reading ... 100 %, 10 of 10 rows, 10 s"


def test_the_pace_is_that_of_what_was_done_here(clock):
    out = Terminal()
    line = Line(out, clock=clock)
    count = begin(line, "tokenising", 100, "units", done=50)
    clock.now += 10
    count.advance(10)
    line.tick()
    assert screen(out) == ["tokenising ... 60 %, 60 of 100 units, 10 s, 40 s left"]


def test_what_is_counted_without_an_end_says_how_much_there_is(clock):
    out = Terminal()
    line = Line(out, clock=clock)
    count = begin(line, "evaluating", None, "rows")
    clock.now += 3
    count.advance(1200)
    line.tick()
    assert screen(out) == ["evaluating ... 1,200 rows, 3.0 s"]


def test_a_pipe_gets_one_line_every_ten_seconds_whatever_parts_there_are(clock):
    out = io.StringIO()
    line = Line(out, clock=clock)
    count = begin(line, "searching", 10, "meshes")
    for _ in range(10):
        line.started("tracing")
        for _ in range(20):
            clock.now += 0.1
            line.tick()
        line.ended("tracing", 2.0)
        count.advance()
    line.ended("searching", 20.0)
    assert out.getvalue().splitlines() == [
        "searching 0 of 10 meshes: tracing ... 0.9 s",
        "searching 5 of 10 meshes: tracing ... 1.0 s",
        "searching took 20 s",
    ]


@pytest.mark.parametrize(
    "width, shown",
    [
        (120, "searching 3 of 10 meshes: restoring the checkpoint ... 25 %, 1.0 of 4.0 GB, 100 MB/s, 10 s, 30 s left"),
        (80, "restoring the checkpoint ... 25 %, 1.0 of 4.0 GB, 100 MB/s, 10 s, 30 s left"),
        (70, "restoring the checkpoint ... 25 %, 1.0 of 4.0 GB, 10 s, 30 s left"),
        (63, "restoring the checkpoint ... 25 %, 1.0 of 4.0 GB, 30 s left"),
        (46, "restoring the checkpoint ... 25 %, 30 s left"),
        (40, "restoring the chec.. ... 25 %, 30 s left"),
    ],
)
def test_a_narrow_terminal_keeps_what_matters_most(width, shown, clock):
    running = [
        Running("searching", 0.0, Count(10, "meshes", 3)),
        Running("restoring the checkpoint", 0.0, Count(4e9, "bytes")),
    ]
    running[1].count.advance(1e9)
    assert text_of(running, 10.0, width) == shown


@given(
    name=st.text(st.characters(exclude_categories=["C", "Z", "M"]), min_size=1, max_size=60),
    outer=st.booleans(),
    total=st.none() | st.integers(0, 10**16),
    done=st.integers(0, 10**16),
    unit=st.sampled_from(["", "bytes", "rows"]),
    seconds=st.floats(0, 1e6),
    width=st.integers(20, 200),
)
def test_no_line_is_wider_than_the_terminal_or_empty(name, outer, total, done, unit, seconds, width):
    around = [Running("searching", 0.0, Count(10, "meshes", 3))] if outer else []
    count = Count(total, unit)
    count.advance(done)
    text = text_of([*around, Running(name, 0.0, count)], seconds, width)
    assert 0 < columns(text) <= width
    assert "\n" not in text


def test_threads_that_advance_one_count_lose_nothing():
    count = Count(80_000)
    threads = [threading.Thread(target=lambda: [count.advance() for _ in range(10_000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.done == 80_000


def test_a_dumb_terminal_gets_lines_and_no_codes(clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    line = Line(out, clock=clock)
    line.started("compiling")
    clock.now += 2
    line.tick()
    line.ended("compiling", 2.0)
    assert out.getvalue() == "compiling ...\ncompiling took 2.0 s\n"


def test_while_somebody_else_writes_the_line_is_away_and_then_it_is_back(clock):
    out = Terminal()
    line = Line(out, clock=clock)
    line.started("compiling")
    with line.away():
        out.write("a message\n")
    line.tick()
    assert screen(out) == ["a message", "compiling ..."]


def test_a_pipe_gets_nothing_for_what_is_short(clock):
    out = io.StringIO()
    line = Line(out, clock=clock)
    line.started("importing")
    line.ended("importing", 0.2)
    assert out.getvalue() == ""


def test_the_time_goes_on_while_the_program_is_busy():
    out = Terminal()
    with Line(out).shown(), phase("compiling"):
        deadline = time.monotonic() + 10
        while out.getvalue().count("compiling") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert out.getvalue().count("compiling") >= 3


def test_a_reader_that_has_gone_does_not_end_the_program(clock):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    line = Line(Gone(), clock=clock)
    line.started("compiling")
    clock.now += 2
    line.tick()
    line.ended("compiling", 2.0)


def test_in_a_library_nothing_is_shown_unless_somebody_asks(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)  # Has no number, as in a notebook.
    with phase("reading", 10) as at:
        at.advance()
    assert said.getvalue() == ""
    with showing(every=0.01), phase("reading", 10):
        note("above")
        deadline = time.monotonic() + 10
        while "reading" not in said.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert said.getvalue().startswith("above\nreading ... 0 %, 0 of 10, 0.")
    with showing(silent=True), phase("writing"):
        note("nothing")
        note("what matters", always=True)
    assert said.getvalue().endswith("what matters\n")
    assert "nothing" not in said.getvalue()
