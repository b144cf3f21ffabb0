# SPDX-License-Identifier: Apache-2.0
"""Lines of a file that others write to: each once, in order, none lost at the end."""

import threading
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.launch import _tail
from dovetail.launch._tail import lines_of

BIG = "x" * 100_000  # More than is read at once.


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(_tail, "_SOON", 0.001)


def over(*steps: Callable[[], object]) -> Callable[[], bool]:
    """Returns what takes a step each time it is asked whether it is over, and is so with the last one."""
    left = list(steps)

    def until() -> bool:
        if left:
            left.pop(0)()
        return not left

    return until


def read(file, *steps: Callable[[], object]) -> list[str]:
    return list(lines_of(file, until=over(*steps), every=0.0))


def add(file, text: str | bytes) -> Callable[[], object]:
    def added():
        with file.open("ab") as opened:
            opened.write(text.encode() if isinstance(text, str) else text)

    return added


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_lines_come_out_as_they_were_however_they_were_written(tmp_path_factory, pieces):
    file = tmp_path_factory.mktemp("tail") / "log"
    whole = b"".join(pieces).decode(errors="replace")
    wanted = whole.split("\n")
    assert read(file, *(add(file, piece) for piece in pieces)) == (wanted if wanted[-1] else wanted[:-1])


def test_lines_longer_than_what_is_read_at_once_are_whole(tmp_path):
    file = tmp_path / "log"
    assert read(file, add(file, BIG), add(file, f"{BIG}\n{BIG}")) == [BIG + BIG, BIG]


def test_what_is_written_with_the_last_answer_is_still_read(tmp_path):
    file = tmp_path / "log"
    assert read(file, add(file, "a\n"), add(file, "b\nthe end")) == ["a", "b", "the end"]


def test_a_file_that_never_comes_has_no_lines(tmp_path):
    assert read(tmp_path / "nowhere" / "log", lambda: None, lambda: None) == []
    assert read(tmp_path, lambda: None) == []  # A directory.


@pytest.mark.parametrize("before", ["one\ntwo\n", "one\ntwo\nthr"])
def test_a_file_that_was_cut_short_is_read_from_its_beginning_without_the_rest_of_before(tmp_path, before):
    file = tmp_path / "log"
    found = read(file, add(file, before), lambda: file.write_text("new\n"), add(file, "more\n"))
    assert found == ["one", "two", "new", "more"]


def test_a_file_that_goes_away_and_comes_again_is_read_on(tmp_path):
    file = tmp_path / "log"
    assert read(file, add(file, "one\n"), file.unlink, add(file, "a\n")) == ["one", "a"]


def test_what_is_no_utf8_does_not_stop_it(tmp_path):
    file = tmp_path / "log"
    assert read(file, add(file, b"\xff\xfe\na"), add(file, "é\n".encode())) == ["\ufffd\ufffd", "aé"]
    assert read(tmp_path / "b", add(tmp_path / "b", "é".encode()[:1]), add(tmp_path / "b", "é\n".encode()[1:])) == ["é"]


def test_it_is_asked_whether_it_is_over_now_and_then_and_not_more_often(tmp_path):
    asked: list[float] = []

    def until() -> bool:
        asked.append(time.monotonic())
        return len(asked) == 4

    assert list(lines_of(tmp_path / "log", until=until, every=0.02)) == []
    assert all(after - before >= 0.02 for before, after in pairwise(asked))


def test_lines_come_while_they_are_written(tmp_path):
    """Nothing is kept back until the end."""
    file, done = tmp_path / "log", threading.Event()
    lines: Iterable[str] = lines_of(file, until=done.is_set, every=0.0)
    found = iter(lines)
    for text in ("first", "second"):
        threading.Timer(0.05, add(file, f"{text}\n")).start()
        assert next(found) == text
    done.set()
    assert list(found) == []
