# SPDX-License-Identifier: Apache-2.0
"""The line that says what goes on: in a terminal it is written over, elsewhere there are few."""

import io
import time

import pytest

from dovetail.progress import Line, phase


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


def test_a_pipe_gets_a_line_within_a_second_one_a_minute_and_one_at_the_end(clock):
    out = io.StringIO()
    line = Line(out, clock=clock)
    line.started("compiling")
    assert out.getvalue() == ""
    for _ in range(1300):
        clock.now += 0.1
        line.tick()
    line.ended("compiling", 130.0)
    assert out.getvalue().splitlines() == [
        "compiling ...",
        "compiling ... 61 s",
        "compiling ... 2 min 1 s",
        "compiling took 2 min 10 s",
    ]


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
