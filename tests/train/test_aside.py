# SPDX-License-Identifier: Apache-2.0
"""Work aside: done in order, never waited for, and what goes wrong is said to whoever comes next."""

import threading

import pytest

from dovetail.train import _aside
from dovetail.train._aside import Aside


def test_it_is_done_in_order_and_the_end_waits_for_it():
    aside, found = Aside("x"), list[int]()
    for number in range(100):
        aside.do(lambda number=number: found.append(number))
    aside.close()
    assert found == list(range(100))


def test_nobody_waits_while_one_thing_takes_long():
    aside, goes_on, found = Aside("x"), threading.Event(), list[str]()
    aside.do(goes_on.wait)
    aside.do(lambda: found.append("after"))
    assert found == []
    goes_on.set()
    aside.close()
    assert found == ["after"]


def test_whatever_is_raised_is_an_error_of_the_outside_once_and_the_rest_is_done():
    aside, found = Aside("x"), list[int]()
    aside.do(lambda: {}["absent"])
    aside.do(lambda: 1 // 0)
    aside.do(lambda: found.append(1))
    with pytest.raises(OSError, match="KeyError: 'absent'"):
        aside.wait()
    aside.wait()
    aside.close()
    assert found == [1]


def test_what_is_stuck_ends_the_waiting_and_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(_aside, "_SECONDS", 0.01)
    monkeypatch.setattr(_aside, "_MOST", 3)
    aside, goes_on = Aside("Slow"), threading.Event()
    aside.do(goes_on.wait)
    with pytest.raises(OSError, match="Slow has not answered within 0 s"):
        aside.wait()
    while aside._work.qsize() < 3:
        aside.do(int)
    with pytest.raises(OSError, match="3 things wait to be written"):
        aside.do(int)
    with pytest.raises(OSError, match="Slow has not taken all of it within 0 s"):
        aside.close()
    goes_on.set()
