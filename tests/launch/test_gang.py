# SPDX-License-Identifier: Apache-2.0
"""Decisions about a gang: who is in it, who broke it, and whether it is tried again."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dovetail.launch import BAD_HOST, DONE, MISTAKE, RESUMABLE, Supervision
from dovetail.launch._gang import Failure, Retries, Slot, culprit, members, outcome, size, whole

RULES = Supervision(max_restarts=50, same_step=3, quarantine_after=3, backoff=1.0, backoff_most=60.0)


def failure(kind: Any = "killed", rank=0, slot="a", text=""):
    return Failure(rank, slot, kind, text)


def test_who_was_killed_is_to_blame_and_not_who_noticed():
    noticed = failure("crashed", 0, text="UNKNOWN: Gloo all-reduce failed: Connection closed by peer")
    aborted = failure("aborted", 2, text="was ended by SIGABRT")
    assert culprit([noticed, aborted, failure("killed", 3)]).rank == 3
    assert culprit([noticed, failure("crashed", 1, text="ZeroDivisionError: division by zero"), aborted]).rank == 1
    assert culprit([noticed, aborted]).rank == 0


@given(st.integers(0, 20), st.integers(1, 12), st.integers(1, 12))
def test_a_gang_divides_the_whole_one_and_is_as_large_as_it_can_be(available, wanted, least):
    found = size(available, wanted, least)
    fits = [n for n in range(1, min(available, wanted) + 1) if wanted % n == 0 and n >= least]
    assert found == max(fits, default=None)


@given(st.permutations("abcdef"), st.integers(1, 6), st.lists(st.sampled_from("abcdefg"), unique=True), st.data())
def test_members_are_usable_and_those_of_before_keep_their_ranks(names, count, before, data):
    slots = [Slot(name, ready=data.draw(st.booleans()) or i < count) for i, name in enumerate(names)]
    failed = data.draw(st.sampled_from([None, *before]))
    found = [slot.name for slot in members(slots, count, before, failed)]
    usable = [slot.name for slot in slots if slot.ready]
    assert len(found) == len(set(found)) == count
    assert set(found) <= set(usable)
    for rank, name in enumerate(before[:count]):
        if name in found:
            assert found.index(name) == rank
    others = set(usable) - {failed}
    if failed in found:  # Only if there is nobody else.
        assert others <= set(found)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.data())
def test_of_slices_only_whole_ones_are_used_and_a_spare_one_takes_the_place_of_one(hosts, slices, spare, data):
    names = [str(number) for number in range(hosts * (slices + spare))]
    away = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
    slots = [Slot(name, ready=name not in away) for name in names]
    usable = whole(slots, hosts)
    there = [n for n in range(slices + spare) if all(str(n * hosts + host) not in away for host in range(hosts))]
    assert {int(slot.name) // hosts for slot in usable} == set(there)
    assert len(usable) == hosts * len(there)
    count = size(len(usable), wanted=hosts * slices, least=1, together=hosts)
    if not there:
        assert count is None
        return
    assert count is not None
    assert count % hosts == 0
    before = names[: hosts * slices]
    failed = data.draw(st.sampled_from([None, *before[:count]]))
    found = [int(slot.name) for slot in members(usable, count, before[:count], failed, hosts)]
    assert len(set(found)) == count
    for first in range(0, count, hosts):  # Each slice is whole, with its hosts in their order.
        assert found[first] % hosts == 0
        assert found[first : first + hosts] == list(range(found[first], found[first] + hosts))
    if failed is not None and len(there) * hosts > count:  # There is another one.
        assert int(failed) // hosts not in {number // hosts for number in found}
    else:
        kept = [rank for rank in range(count) if str(found[rank]) == before[rank]]
        assert all(rank in kept for rank in range(count) if rank // hosts in there) or failed is not None


def test_a_run_that_moves_on_is_restarted_at_once_and_one_that_does_not_later_and_later():
    retries = Retries(RULES.set(same_step=9))
    steps = [10, 20, 20, 20, 20, 30]
    slots = "abcdef"
    verdicts = [
        retries.failed(failure(slot=slot), step, now=0.0, can_replace=False)
        for slot, step in zip(slots, steps, strict=True)
    ]
    assert [each.action for each in verdicts] == ["restart"] * 6
    assert [each.delay for each in verdicts] == [0.0, 0.0, 1.0, 2.0, 4.0, 0.0]


def test_the_reason_names_the_last_step_ever_even_if_the_last_start_made_none():
    retries = Retries(RULES)
    verdicts = [retries.failed(failure(), step, now=0.0, can_replace=False) for step in (7, 0, 0)]
    assert verdicts[-1].reason == "it failed 3 times after step 7"


def test_back_off_has_a_limit():
    retries = Retries(RULES.set(same_step=100))
    delays = [retries.failed(failure(slot=str(i)), 5, now=0.0, can_replace=False).delay for i in range(12)]
    assert max(delays) == delays[-1] == 60.0


def test_a_run_that_fails_too_often_within_an_hour_ends():
    retries = Retries(RULES.set(max_restarts=5))

    def fail(step, now):
        return retries.failed(failure(slot=str(step)), step, now=now, can_replace=False).action

    assert [fail(step, 60.0 * step) for step in range(1, 6)] == ["restart"] * 5
    assert fail(6, 3599.0) == "end"
    assert fail(7, 4000.0) == "restart"  # The first ones are over an hour ago.


def test_failures_of_one_host_in_a_row_quarantine_it_if_it_can_be_replaced():
    for can_replace, expected in ((True, "quarantine"), (False, "restart")):
        retries = Retries(RULES)
        verdicts = [retries.failed(failure(slot="a"), step, now=0.0, can_replace=can_replace) for step in (10, 20, 30)]
        assert verdicts[-1].action == expected


def test_failures_of_other_hosts_in_between_are_not_in_a_row():
    retries = Retries(RULES)
    for step, slot in enumerate("aabaab"):
        verdict = retries.failed(failure(slot=slot), step, now=0.0, can_replace=True)
        assert verdict.action == "restart"


def test_the_outcome_is_what_all_processes_say():
    assert outcome([DONE, DONE]) == DONE
    assert outcome([DONE, RESUMABLE]) == RESUMABLE
    assert outcome([1, MISTAKE]) == MISTAKE
    assert outcome([1, BAD_HOST]) == BAD_HOST
    assert outcome([DONE, 1]) is None
    assert outcome([DONE, -9]) is None
