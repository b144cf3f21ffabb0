# SPDX-License-Identifier: Apache-2.0
"""Pages: who has them, what is kept, and what goes."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dovetail.serve._device import Group
from dovetail.serve._pages import Held, Pages
from support.fake_device import FULL, HYBRID, ONLY_WINDOWED, RECURRENT, SHAPES, UNSAVED, WINDOWED, shape_of
from support.pages import check_all_free, check_pages

TOKENS = tuple(range(100, 140))


def run(pages, tokens, *, salt="", computed=None):
    """A sequence that has read its tokens, and keeps its pages; how many it had found."""
    held, hit, _ = pages.take(tokens, salt)
    computed = len(tokens) if computed is None else computed
    assert pages.grow(held, computed)
    pages.started(held)
    pages.commit(held, tokens, computed)
    pages.behind(held, computed)
    return held, hit


def hit_of(pages, tokens, salt=""):
    held, hit, _ = pages.take(tokens, salt)
    pages.release(held)
    return hit


def keep(pages, tokens, **fields):
    pages.release(run(pages, tokens, **fields)[0])


def test_a_prefix_is_found_in_full_pages_and_never_with_the_last_token():
    pages = Pages(FULL)
    keep(pages, TOKENS[:10])
    assert hit_of(pages, TOKENS) == 8
    assert hit_of(pages, TOKENS[:9]) == 8
    assert hit_of(pages, TOKENS[:8]) == 4
    assert hit_of(pages, TOKENS[:4]) == 0
    check_all_free(pages)


def test_a_page_is_found_only_after_the_same_tokens_and_with_the_same_salt():
    pages = Pages(FULL)
    keep(pages, TOKENS[:12])
    assert hit_of(pages, (1, *TOKENS[1:12])) == 0
    assert hit_of(pages, (*TOKENS[:4], 1, *TOKENS[5:12])) == 4
    assert hit_of(pages, (*TOKENS[4:12], 0)) == 0
    assert hit_of(pages, TOKENS[:12], salt="other") == 0
    keep(pages, TOKENS[:12], salt="other")
    assert hit_of(pages, TOKENS[:12], salt="other") == 8


def test_sequences_share_the_pages_of_a_prefix_and_write_to_their_own():
    pages = Pages(FULL)
    first, _ = run(pages, TOKENS[:12])
    second, hit = run(pages, TOKENS[:12])
    assert hit == 8
    assert second.tables[0][:2] == first.tables[0][:2]
    assert second.tables[0][2] != first.tables[0][2]
    check_pages(pages, [first, second])
    pages.release(first)
    check_pages(pages, [second])
    pages.release(second)
    check_all_free(pages)


def test_of_two_that_compute_the_same_each_keeps_its_own_page():
    pages = Pages(FULL)
    helds = [pages.take(TOKENS[:9])[0] for _ in range(2)]
    for held in helds:
        assert pages.grow(held, 9)
        pages.commit(held, TOKENS[:9], 9)
        check_pages(pages, helds)
    assert not set(helds[0].tables[0]) & set(helds[1].tables[0])
    pages.release(helds[0])
    pages.release(helds[1])
    assert pages.usage()["full"].cached == 2
    check_all_free(pages)


def test_what_the_tree_has_lost_it_gets_from_a_sequence_that_still_has_it():
    pages = Pages(shape_of(groups=(Group("full", None, 8),)))
    own, _, _ = pages.take(TOKENS[:9])
    assert pages.grow(own, 9)
    keep(pages, TOKENS[:9])
    pages.commit(own, TOKENS[:9], 9)
    other, _, _ = pages.take((1,))
    assert pages.grow(other, 16)  # All that is left: what was kept goes.
    check_pages(pages, [own, other])
    pages.release(own)
    check_pages(pages, [other])
    assert hit_of(pages, TOKENS[:9]) == 8


def test_a_sequence_gets_room_in_all_groups_or_in_none():
    pages = Pages(shape_of(groups=(Group("a", None, 20), Group("b", None, 4))))
    held, _, _ = pages.take(TOKENS)
    assert not pages.grow(held, 13)
    assert held.tables == [[], []]
    assert pages.grow(held, 12)
    assert not pages.grow(held, 13)
    assert all(0 not in table for table in held.tables)
    check_pages(pages, [held])


def test_what_was_used_longest_ago_goes_first_and_the_end_of_a_prefix_before_its_beginning():
    pages = Pages(shape_of(groups=(Group("full", None, 7),)))  # Room for six.
    old, new = TOKENS[:13], TOKENS[20:33]
    keep(pages, old, computed=12)
    keep(pages, new, computed=12)
    assert hit_of(pages, old) == 12  # Now the older one is the other.
    held, _, _ = pages.take((1,))
    assert pages.grow(held, 8)
    assert hit_of(pages, old) == 12
    assert hit_of(pages, new) == 4
    check_pages(pages, [held])


def test_pages_behind_a_window_can_be_had_by_others_and_are_kept_until_then():
    pages = Pages(WINDOWED)
    held, _ = run(pages, TOKENS)  # 40 tokens; the next sees 35 to 40: places 8, 9.
    assert held.tables[1] == [0] * 8 + held.tables[1][8:]
    assert all(held.tables[1][8:])
    assert pages.usage()["near"].used == 2
    assert pages.usage()["near"].cached == 8
    check_pages(pages, [held])
    assert pages.behind(held, 40) == 41  # Then the next sees 36 to 41.
    assert held.tables[1][8]
    assert pages.behind(held, 41) == 45
    assert not held.tables[1][8]
    pages.release(held)
    check_all_free(pages)


@pytest.mark.parametrize("tokens", range(1, 30))
def test_a_window_keeps_exactly_the_pages_that_the_next_token_sees(tokens):
    pages = Pages(WINDOWED)
    held, _ = run(pages, TOKENS[:tokens])
    sees = range(max(0, tokens - 6 + 1), tokens)  # Six with itself.
    assert {place for place, page in enumerate(held.tables[1]) if page} >= {place // 4 for place in sees}
    assert all(page == 0 for page in held.tables[1][: max(0, tokens - 5) // 4])


def test_a_prefix_is_hit_only_where_the_windows_have_their_pages():
    pages = Pages(shape_of(groups=(Group("full", None, 40), Group("near", 6, 12))))
    keep(pages, TOKENS[:33])
    assert hit_of(pages, TOKENS[:33]) == 32
    held, _, _ = pages.take((1,))
    assert pages.grow(held, 20)  # Of the 11 pages near, 9 were in use or kept: some go, those far back first.
    assert pages.usage()["near"].cached < 8
    hit = hit_of(pages, TOKENS[:33])
    assert hit == 32
    assert hit_of(pages, TOKENS[:9]) < 8
    assert pages.grow(held, 40)
    assert hit_of(pages, TOKENS[:33]) < 32
    check_pages(pages, [held])


def test_row_state_is_hit_at_snapshots_alone_and_they_are_where_their_node_is():
    pages = Pages(HYBRID)
    held, _, _ = pages.take(TOKENS[:18])
    assert pages.grow(held, 18)
    first = pages.snapshot(held, 8)
    assert first is not None
    pages.commit(held, TOKENS[:18], 18)
    assert pages.snapshot(held, 8) is None  # It is there.
    pages.release(held)
    again, hit, known = pages.take(TOKENS[:18])
    assert (hit, known, again.source) == (8, 16, first)
    check_pages(pages, [again])
    pages.release(again)
    assert hit_of(pages, TOKENS[:8]) == 0
    check_all_free(pages)


def test_a_snapshot_that_a_sequence_is_about_to_start_from_does_not_go():
    pages = Pages(RECURRENT)
    held, _, _ = pages.take(TOKENS[:5])
    number = pages.snapshot(held, 4)
    pages.commit(held, TOKENS[:5], 5)
    pages.release(held)
    waiting, hit, _ = pages.take(TOKENS[:5])
    assert hit == 4
    others = [pages.take((i,) * 5)[0] for i in range(8)]
    got = [pages.snapshot(other, 4) for other in others]
    assert None in got
    assert number not in got
    check_pages(pages, [waiting, *others])
    pages.started(waiting)
    assert pages.snapshot(others[-1], 4) == number
    check_pages(pages, [waiting, *others])


def test_an_answer_has_one_snapshot_which_moves_on():
    pages = Pages(HYBRID)
    held, _, _ = pages.take(TOKENS[:3])
    assert pages.grow(held, 40)
    for end in range(4, 40, 4):
        assert pages.moving(held, end) is not None
        pages.commit(held, TOKENS, end)
        assert pages.snapshots() == 1
        check_pages(pages, [held])
    pages.release(held)
    assert hit_of(pages, TOKENS) == 36


def test_a_snapshot_of_an_answer_stays_where_another_has_read_the_same():
    pages = Pages(HYBRID)
    first, second = (pages.take(TOKENS[:3])[0] for _ in range(2))
    for held in (first, second):
        assert pages.grow(held, 12)
        pages.moving(held, 4)
        pages.commit(held, TOKENS, 4)
    assert pages.moving(first, 8) is not None
    pages.commit(first, TOKENS, 8)
    assert pages.snapshots() == 2
    check_pages(pages, [first, second])


def test_without_snapshots_a_device_with_row_state_keeps_nothing():
    pages = Pages(UNSAVED)
    keep(pages, TOKENS)
    assert hit_of(pages, TOKENS) == 0
    assert pages.usage()["full"].cached == 0


def test_nothing_is_hit_after_clear():
    pages = Pages(WINDOWED)
    keep(pages, TOKENS)
    pages.clear()
    assert hit_of(pages, TOKENS) == 0
    check_all_free(pages)


class Sequences(RuleBasedStateMachine):
    """Sequences of few different tokens, which begin, go on and end in any order."""

    shape = FULL

    def __init__(self):
        super().__init__()
        self.pages = Pages(self.shape)
        self.helds: list[tuple[Held, list[int], int]] = []  # With tokens, and those computed.

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24), salt=st.sampled_from("ab"))
    def take(self, tokens, salt):
        held, hit, known = self.pages.take(tokens, salt)
        assert 0 <= hit <= known < len(tokens)
        assert hit % self.shape.page == 0
        self.helds.append((held, tokens, hit))

    @precondition(lambda self: self.helds)
    @rule(data=st.data(), count=st.integers(1, 12), snapshot=st.booleans())
    def go_on(self, data, count, snapshot):
        i = data.draw(st.integers(0, len(self.helds) - 1))
        held, tokens, computed = self.helds[i]
        count = min(count, self.shape.max_length - computed)
        rooms = [self.pages.room(group) for group in range(len(self.shape.groups))]
        if not self.pages.grow(held, computed + count):
            assert rooms == [self.pages.room(group) for group in range(len(self.shape.groups))]
            return
        self.pages.started(held)
        computed += count
        tokens = tokens + [0] * max(0, computed - len(tokens))
        if snapshot and self.shape.has_row_state and computed % self.shape.page == 0:
            (self.pages.moving if count == 1 else self.pages.snapshot)(held, computed)
        self.pages.commit(held, tokens, computed)
        self.pages.behind(held, computed)
        self.helds[i] = (held, tokens, computed)

    @precondition(lambda self: self.helds)
    @rule(data=st.data())
    def end(self, data):
        held, _, _ = self.helds.pop(data.draw(st.integers(0, len(self.helds) - 1)))
        self.pages.release(held)

    @invariant()
    def pages_are_at_one_place(self):
        check_pages(self.pages, [held for held, _, _ in self.helds])

    def teardown(self):
        for held, _, _ in self.helds:
            self.pages.release(held)
        check_all_free(self.pages)


FEW = {
    "full": shape_of(groups=(Group("full", None, 12),)),
    "windowed": shape_of(groups=(Group("full", None, 14), Group("near", 6, 9))),
    "only windowed": ONLY_WINDOWED,
    "hybrid": shape_of(groups=(Group("full", None, 14), Group("near", 6, 9)), has_row_state=True, snapshots=3),
    "recurrent": shape_of(groups=(), has_row_state=True, snapshots=2),
}
assert FEW.keys() <= SHAPES.keys()


@pytest.mark.parametrize("name", FEW)
def test_no_page_is_lost_or_used_twice_whatever_sequences_do(name):
    machine = type("Machine", (Sequences,), {"shape": FEW[name]})
    cases = settings(max_examples=25, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])
    case = machine.TestCase
    case.settings = cases
    case("runTest").runTest()
