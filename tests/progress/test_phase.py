# SPDX-License-Identifier: Apache-2.0
"""Phases reach the watcher that is there, and nobody else."""

import pytest

from dovetail.progress import Watcher, phase, watching


class Notes(Watcher):
    def __init__(self):
        self.seen = []

    def started(self, name):
        self.seen.append(name)

    def ended(self, name, seconds):
        self.seen.append((name, seconds is not None))


def test_a_watcher_hears_of_phases_in_order_and_of_those_that_fail():
    notes = Notes()
    with watching(notes):
        with phase("a"), phase("b"):
            pass
        with pytest.raises(ValueError, match="no"), phase("c"):
            raise ValueError("no")
    assert notes.seen == ["a", "b", ("b", True), ("a", True), "c", ("c", False)]


def test_the_inner_watcher_takes_the_place_of_the_outer_one_and_gives_it_back():
    outer, inner = Notes(), Notes()
    with phase("nobody watches"), watching(outer):
        with watching(inner), phase("a"):
            pass
        with phase("b"):
            pass
    assert (inner.seen, outer.seen) == (["a", ("a", True)], ["b", ("b", True)])
