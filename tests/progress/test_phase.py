# SPDX-License-Identifier: Apache-2.0
"""Phases reach the watcher that is there, and nobody else."""

import pytest

from dovetail.progress import Count, Watcher, counting, is_quiet, phase, quiet, watching


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


def test_a_watcher_reads_how_far_a_phase_is_and_who_works_needs_no_watcher():
    class Reads(Notes):
        def counts(self, count):
            self.count = count

    reads = Reads()
    with watching(reads), phase("restoring", 10, unit="bytes", done=2) as at:
        at.advance(3)
        assert (reads.count.done, reads.count.first, reads.count.total, reads.count.unit) == (5, 2, 10, "bytes")
        assert reads.count.left(6.0) == 10.0
    with phase("nobody watches", 10) as at:
        at.advance()
    assert at.done == 1


def test_who_works_makes_the_innermost_phase_count_without_knowing_it():
    class Reads(Notes):
        found = Count()

        def counts(self, count):
            self.found = count

    def works():
        at = counting(20, "bytes")
        at.advance(5)

    reads = Reads()
    with watching(reads), phase("restoring"), phase("reading"):
        works()
        assert (reads.found.done, reads.found.total, reads.found.unit) == (5, 20, "bytes")
        works()  # Again from the beginning, as after a damaged file.
        assert reads.found.done == 5
    works()


def test_quiet_holds_inside_and_nowhere_else():
    assert not is_quiet()
    with quiet():
        assert is_quiet()
    assert not is_quiet()
