# SPDX-License-Identifier: Apache-2.0
"""A job whose lines are followed: until it prints something, it is said that it waits."""

from dovetail.launch import JobInfo, awaited
from dovetail.progress import Watcher, watching


class Notes(Watcher):
    def __init__(self):
        self.seen = []

    def started(self, name):
        self.seen.append(name)

    def ended(self, name, seconds):
        self.seen.append("ended")


def test_it_is_said_that_a_job_waits_until_its_first_line_and_no_longer():
    notes = Notes()

    def lines():
        notes.seen.append("asked")
        yield "one"
        notes.seen.append("asked again")
        yield "two"

    with watching(notes):
        for line in awaited(JobInfo("7", "whales", "waiting", "", "runs/whales", ""), lines()):
            notes.seen.append(line)
    assert notes.seen == ["waiting for whales to start", "asked", "ended", "one", "asked again", "two"]


def test_a_job_that_prints_nothing_ends_the_waiting():
    assert list(awaited(JobInfo("7", "", "waiting", "", "", ""), [])) == []
