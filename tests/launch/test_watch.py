# SPDX-License-Identifier: Apache-2.0
"""Who is frozen, who hangs, who is slow: from heartbeats, without a clock."""

import pytest

from dovetail.launch import Supervision
from dovetail.launch._watch import Watch

RULES = Supervision(heartbeat=5.0, hang_factor=20.0, hang_least=3.0, start_limit=900.0)


def beat(made=0, begun=None, phase="", quiet=0.0, waited=0.0):
    begun = made if begun is None else begun
    return {"made": made, "begun": begun, "total": 100, "phase": phase, "quiet": quiet, "waited": waited}


def stepping(ranks=2, seconds=0.5, steps=20, own=None, rules=RULES):
    """A watch of processes that have made so many steps; each has waited all the time, but for its own part."""
    watch, own = Watch(rules), own or [0.01] * ranks
    watch.restart(ranks, 0.0)
    for step in range(1, steps + 1):
        for rank in range(ranks):
            watch.heard(rank, beat(step, step + 2, waited=step * (seconds - own[rank])), step * seconds)
    return watch, steps * seconds


def test_a_process_that_says_nothing_is_frozen_after_the_heartbeat():
    watch, now = stepping()
    assert watch.frozen(now + 4.9) == {}
    watch.heard(0, beat(20, 22), now + 4.9)
    assert watch.frozen(now + 5.1) == {1: "has not been heard of for 5.1 s"}


def test_a_step_hangs_by_what_steps_have_taken():
    watch, now = stepping(seconds=0.5)  # 20 times 0.5 s.
    for rank, begun in ((0, 22), (1, 21)):
        watch.heard(rank, beat(20, begun, quiet=9.5), now + 9.5)
    assert watch.hanging(now + 9.6) == {}
    for rank, begun in ((0, 22), (1, 21)):
        watch.heard(rank, beat(20, begun, quiet=10.1), now + 10.1)
    text = "hangs: it is after step 20, having begun step 21, where nothing has changed for 10.1 s"
    assert watch.hanging(now + 10.2) == {1: text}  # The other one waits for it.


def test_quick_steps_do_not_hang_before_the_least():
    watch, now = stepping(seconds=0.01)
    for rank in range(2):
        watch.heard(rank, beat(20, 20 + rank, quiet=2.9), now + 2.9)
    assert watch.hanging(now + 2.9) == {}
    for rank in range(2):
        watch.heard(rank, beat(20, 20 + rank, quiet=3.1), now + 3.1)
    assert list(watch.hanging(now + 3.1)) == [0]


def test_the_first_steps_may_take_long():
    watch = Watch(RULES)
    watch.restart(2, 0.0)
    for rank in range(2):
        watch.heard(rank, beat(phase="compiling", quiet=899.0), 899.0)
    assert watch.hanging(899.5) == {}
    for rank in range(2):
        watch.heard(rank, beat(phase="compiling", quiet=901.0), 901.0)
    assert watch.hanging(901.0)[0] == "hangs: it is in 'compiling', where nothing has changed for 901.0 s"


def compiling(ranks, seconds):
    """A watch of processes, of which the first ones have compiled for so many seconds each."""
    watch = Watch(RULES)
    watch.restart(ranks, 0.0)
    for rank, each in enumerate(seconds):
        watch.heard(rank, beat(phase="compiling"), 0.1)
        watch.heard(rank, beat(phase="compiling", quiet=each), each)
        watch.heard(rank, beat(1), each)
    return watch


@pytest.mark.parametrize("seconds, limit", [((4.0, 2.0), 80.0), ((0.5, 0.5), 60.0)])
def test_what_was_seen_before_a_restart_counts_after_it(seconds, limit):
    watch = compiling(2, seconds)
    watch.restart(2, 100.0)
    for late, hangs in ((limit - 0.5, []), (limit + 0.5, [0, 1])):
        for rank in range(2):
            watch.heard(rank, beat(phase="compiling", quiet=late), 100.0 + late)
        assert list(watch.hanging(100.0 + late)) == hangs


def test_what_one_process_found_kept_another_may_have_to_compile():
    watch = compiling(2, [0.5])
    watch.heard(0, beat(1, quiet=100.0), 100.0)
    watch.heard(1, beat(phase="compiling", quiet=100.0), 100.0)
    assert watch.hanging(100.0) == {}


def test_with_another_number_of_processes_all_is_new():
    watch = compiling(2, [0.5, 0.5])
    watch.restart(1, 100.0)
    watch.heard(0, beat(phase="compiling", quiet=300.0), 400.0)
    assert watch.hanging(400.0) == {}


def test_while_one_is_silent_nobody_hangs():
    watch, now = stepping()
    watch.heard(0, beat(20, 22, quiet=30.0), now + 30.0)
    assert watch.hanging(now + 30.0) == {}
    assert list(watch.frozen(now + 30.0)) == [1]


def test_who_is_alone_in_a_phase_is_waited_for():
    watch, now = stepping(ranks=3)
    for rank, phase in enumerate(("", "evaluating", "")):
        watch.heard(rank, beat(20, 22, phase=phase, quiet=0.1), now)
    assert watch.behind() == [1]


def test_a_slow_process_is_named_by_its_own_part_of_a_step():
    watch, _ = stepping(ranks=4, own=[0.02, 0.02, 0.2, 0.02])
    assert {rank: round(ratio) for rank, ratio in watch.stragglers().items()} == {2: 10}


def test_of_two_the_slower_one_is_named():
    watch, _ = stepping(ranks=2, own=[0.02, 0.2])
    assert list(watch.stragglers()) == [1]


def test_what_does_not_count_beside_a_step_is_not_slow():
    watch, _ = stepping(ranks=4, seconds=0.5, own=[0.001, 0.001, 0.02, 0.001])
    assert watch.stragglers() == {}


def test_a_few_steps_do_not_make_a_straggler():
    watch, _ = stepping(ranks=4, steps=10, own=[0.02, 0.02, 0.2, 0.02])
    assert watch.stragglers() == {}
