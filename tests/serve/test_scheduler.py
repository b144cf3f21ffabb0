# SPDX-License-Identifier: Apache-2.0
"""What runs next: order, budgets, chunks, preemption, and what never happens whatever is asked."""

import dataclasses
from random import Random

import pytest

from dovetail.serve._device import DeviceShape, Group
from dovetail.serve._request import Draw, Request
from dovetail.serve._scheduler import Scheduler
from dovetail.serve._sequence import Sequence
from support.fake_device import FULL, HYBRID, shape_of
from support.pages import check_all_free, check_pages
from support.stepped import Even, prompt

BUDGET = 16


def request(tokens, max_tokens=4, **fields):
    return Request(tokens=tuple(tokens), max_tokens=max_tokens, draw=Draw(temperature=0), **fields)


def step(scheduler):
    """Makes the calls of a step, and draws token 1 in each row; returns the calls, with sizes and rows."""
    calls = scheduler.plan(settled=True)
    assert calls is not None
    made = list(calls)
    for call in made:
        for row in call.rows:
            if row.draws:
                scheduler.learn(row.sequence, 1)
                if len(row.sequence.tokens) >= row.sequence.limit:
                    scheduler.end(row.sequence)
    return made


def read(calls):
    """The size of each call, and the tokens that its rows read."""
    return [(call.size, [row.count for row in call.rows]) for call in calls]


def test_a_prompt_is_read_in_the_smallest_chunk_that_holds_it_or_else_the_largest():
    for length, sizes in ((3, [4]), (4, [4]), (5, [8]), (16, [16]), (18, [16, 4]), (40, [16, 16, 8])):
        scheduler = Scheduler(FULL, chunk_budget=64)
        scheduler.add(request(prompt(length)))
        calls = step(scheduler)
        assert [call.size for call in calls] == sizes
        assert sum(row.count for call in calls for row in call.rows) == length
        assert [row.draws for call in calls for row in call.rows] == [False] * (len(sizes) - 1) + [True]


def test_one_token_that_is_left_is_read_beside_those_of_answers():
    scheduler = Scheduler(FULL)
    scheduler.add(request((1,)))
    assert read(step(scheduler)) == [(1, [1])]
    scheduler.add(request(prompt(17)))
    assert read(step(scheduler)) == [(1, [1]), (16, [16])]
    assert read(step(scheduler)) == [(1, [1, 1])]


def test_answers_go_first_and_prompts_get_the_rest_of_the_budget():
    scheduler = Scheduler(FULL, chunk_budget=16)
    scheduler.add(request(prompt(6), 9))
    step(scheduler)
    scheduler.add(request(prompt(40, 1)))
    scheduler.add(request(prompt(5, 2)))
    assert read(step(scheduler)) == [(1, [1]), (16, [16])]
    assert read(step(scheduler)) == [(1, [1]), (16, [16])]
    assert read(step(scheduler)) == [(1, [1]), (8, [8]), (8, [5])]


def test_a_budget_below_a_chunk_takes_the_largest_chunk_within_it():
    scheduler = Scheduler(FULL, chunk_budget=10)
    scheduler.add(request(prompt(20)))
    assert [read(step(scheduler)) for _ in range(3)] == [[(8, [8])], [(8, [8])], [(4, [4])]]


def test_chunks_end_where_a_snapshot_is_wanted():
    scheduler = Scheduler(HYBRID, chunk_budget=64)
    first = scheduler.add(request(prompt(27), 1))
    calls = step(scheduler)
    assert read(calls) == [(16, [16]), (8, [8]), (4, [3])]
    assert [len(call.saves) for call in calls] == [0, 1, 0]
    assert first.ended
    scheduler.add(request((*prompt(27)[:14], 1, 2, 3, 4, 5), 1))
    assert read(step(scheduler)) == [(16, [12]), (4, [4]), (4, [3])]  # Where both part, and at the last page.


def test_a_lower_number_comes_first_and_nobody_waits_for_ever():
    scheduler = Scheduler(shape_of(slots=1, rows=(1,)), ageing=20, chunk_budget=64)
    low = scheduler.add(request((1, 2), 2, priority=1))
    order = list[Sequence]()
    others = []
    for _ in range(60):
        others.append(scheduler.add(request((3, 4), 2, priority=0)))
        for call in step(scheduler):
            order.extend(row.sequence for row in call.rows)
    assert order[0] is others[0]
    assert low.ended
    assert order.index(low) == 40  # After those of 20 steps, each of which runs for two.


def test_the_youngest_of_the_lowest_class_gives_way_and_the_first_goes_on():
    scheduler = Scheduler(shape_of(groups=(Group("full", None, 17),)), prefix_cache=False)
    sequences = [scheduler.add(request(prompt(10, seed), 50, priority=-(seed == 2))) for seed in range(4)]
    while not scheduler.preemptions:
        step(scheduler)
    assert scheduler.waiting == [sequences[3]]
    assert scheduler.running == [sequences[2], sequences[0], sequences[1]]
    while not sequences[2].ended:
        step(scheduler)
        assert sequences[2] not in scheduler.waiting


def test_before_anyone_gives_way_it_is_known_what_was_drawn():
    scheduler = Scheduler(shape_of(groups=(Group("full", None, 6),)))
    for seed in range(2):
        scheduler.add(request(prompt(5, seed), 15))
    while (calls := scheduler.plan(settled=False)) is not None:
        for call in calls:
            for row in call.rows:
                scheduler.learn(row.sequence, 1)
    assert not scheduler.preemptions
    assert all(sequence.slot is not None for sequence in scheduler.running)
    assert scheduler.plan(settled=True) is not None
    assert scheduler.preemptions == 1


def test_a_sequence_begins_only_if_those_that_run_keep_some_pages_in_reserve():
    scheduler = Scheduler(shape_of(groups=(Group("full", None, 13),)), prefix_cache=False)
    for seed in range(3):
        scheduler.add(request(prompt(15, seed), 9))
    step(scheduler)
    assert len(scheduler.running) == 2  # The third would leave none of the twelve pages.


def test_who_comes_after_one_that_finds_no_room_waits_too():
    scheduler = Scheduler(shape_of(groups=(Group("full", None, 13),)), prefix_cache=False)
    first = scheduler.add(request(prompt(20), 20))
    step(scheduler)
    large = scheduler.add(request(prompt(30, 1), 5))
    small = scheduler.add(request(prompt(2, 2), 5))
    while not first.ended:
        step(scheduler)
        if not first.ended:
            assert scheduler.waiting == [large, small]
    step(scheduler)
    assert large in scheduler.running


def test_the_prompt_of_one_that_computes_the_same_is_waited_for_but_not_for_ever():
    scheduler = Scheduler(FULL, chunk_budget=4, patience=5)
    leader = scheduler.add(request(prompt(41)))
    step(scheduler)
    follower = scheduler.add(request(prompt(41)))
    assert [scheduler._waits_for_another(follower) for _ in range(7)] == [True] * 5 + [False] * 2
    while not leader.ended:
        step(scheduler)
    assert follower.cached == 40


def test_a_sequence_with_a_grammar_is_not_written_ahead():
    scheduler = Scheduler(FULL)
    written, other = scheduler.add(request((1, 2), 9, grammar=Even())), scheduler.add(request((1, 2), 9))
    for expected in ([written, other], [other], [other]):
        calls = scheduler.plan(settled=False)
        assert calls is not None
        assert [row.sequence for call in calls for row in call.rows] == expected
    scheduler.learn(written, 2)
    calls = scheduler.plan(settled=False)
    assert calls is not None
    assert written in [row.sequence for call in calls for row in call.rows]


@dataclasses.dataclass
class Modelled:
    """What a sequence has read, as far as calls say."""

    sequence: Sequence
    turns: int = 0
    read: int = 0
    answer: int = 0
    since: int = 0  # The step in which it came.


class Model:
    """Makes the calls of a scheduler, one step late, as an engine does, and checks each."""

    def __init__(self, shape: DeviceShape, seed: int) -> None:
        self.shape, self.random = shape, Random(seed)
        self.scheduler = Scheduler(shape, chunk_budget=BUDGET, ageing=50, patience=self.random.choice([0, 3, 100]))
        self.live: dict[Sequence, Modelled] = {}
        self.outstanding: list[list[tuple[Sequence, bool]]] = []
        self.ended = 0

    def add(self) -> None:
        random = self.random
        tokens = [random.randrange(2) for _ in range(random.choice([1, 5, 9, 17, 33]))]
        scores = random.choice([None, None, None, 0])
        asked = request(tokens, random.choice([0, 1, 6, 20]), priority=random.randrange(3), prompt_logprobs=scores)
        sequence = self.scheduler.add(asked)
        self.live[sequence] = Modelled(sequence, since=self.scheduler.steps)

    def cancel(self) -> None:
        if self.live:
            self.end(self.random.choice(list(self.live)))

    def end(self, sequence: Sequence) -> None:
        self.scheduler.end(sequence)
        del self.live[sequence]
        self.ended += 1

    def fetch(self) -> None:
        for sequence, draws in self.outstanding.pop(0):
            if sequence.ended:
                continue
            if draws:
                self.scheduler.learn(sequence, self.random.randrange(2))
            elif sequence.limit > sequence.prompt or sequence.computed < sequence.prompt:
                continue
            if len(sequence.tokens) >= sequence.limit or self.random.random() < 0.02:
                self.end(sequence)

    def step(self) -> None:
        calls = self.scheduler.plan(settled=not self.outstanding)
        if calls is None:
            while self.outstanding:
                self.fetch()
            calls = self.scheduler.plan(settled=True)
            assert calls is not None
        made, chunks = list[tuple[Sequence, bool]](), list[int]()
        for number, call in enumerate(calls):
            if call.size == 1:
                assert number == 0
                assert len(call.rows) <= self.shape.slots
            else:
                assert call.size in self.shape.chunks
                assert len(call.rows) == 1
                chunks.append(call.rows[0].count)
            slots = [row.sequence.slot for row in call.rows]
            assert len(set(slots)) == len(slots)
            for row in call.rows:
                self.check(row, call.size)
                made.append((row.sequence, row.draws))
        assert sum(chunks) <= BUDGET
        if made:
            self.outstanding.append(made)
        while len(self.outstanding) > bool(made):
            self.fetch()

    def check(self, row, size) -> None:
        model, sequence = self.live[row.sequence], row.sequence
        if model.turns != sequence.turns:
            model.turns, model.read = sequence.turns, row.start
            assert row.start % self.shape.page == 0
            assert row.start < len(sequence.tokens)
            assert (row.source is not None) == (self.shape.has_row_state and row.start > 0)
            assert row.start == 0 or not row.scores
        assert row.start == model.read
        assert 0 < row.count <= size
        model.read += row.count
        assert model.read <= sequence.limit
        for group, table in zip(self.shape.groups, sequence.held.tables, strict=True):
            first = 0 if group.window is None else max(0, row.start - group.window + 1)
            assert all(table[place // self.shape.page] for place in range(first, model.read))
        if row.draws:
            assert row.number == sequence.length - sequence.prompt
            assert sequence.length < sequence.limit

    def check_pages(self) -> None:
        running = self.scheduler.running
        check_pages(self.scheduler.pages, [sequence.held for sequence in running if sequence.held])
        assert {*running, *self.scheduler.waiting} == set(self.live)
        assert sorted(s.slot for s in running if s.slot is not None) == sorted(
            set(range(self.shape.slots)) - set(self.scheduler._slots)
        )


TIGHT = {
    "full": shape_of(groups=(Group("full", None, 17),)),
    "windowed": shape_of(groups=(Group("full", None, 17), Group("near", 6, 9))),
    "hybrid": shape_of(groups=(Group("full", None, 17), Group("near", 6, 9)), has_row_state=True, snapshots=3),
    "recurrent": shape_of(groups=(), has_row_state=True, snapshots=3),
}


@pytest.mark.parametrize("name", TIGHT)
def test_nothing_is_lost_or_starved_in_ten_thousand_steps_of_anything(name):
    model = Model(TIGHT[name], seed=len(name))
    for number in range(10_000 if name == "windowed" else 2_500):
        action = model.random.random()
        if action < 0.22 and len(model.live) < 12:
            model.add()
        elif action < 0.25:
            model.cancel()
        else:
            model.step()
        if number % 10 == 0:
            model.check_pages()
        assert all(model.scheduler.steps - live.since < 1500 for live in model.live.values())
    while model.live or model.outstanding:
        model.step()
    assert model.ended > 400
    assert model.scheduler.preemptions > 0 or name == "recurrent"
    check_all_free(model.scheduler.pages)
