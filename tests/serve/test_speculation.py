# SPDX-License-Identifier: Apache-2.0
"""Guesses change no answer, however good or bad they are; they only change how many steps it takes."""

import dataclasses
import functools
import time
from random import Random
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.serve import Draw, Engine, ModelDevice, Request, ServedModel
from dovetail.serve._guess import Guesser, Guesses, Lookup
from dovetail.train import Trained
from support.fake_device import FULL, FakeDevice, expected
from support.schedules import TIGHT, check_schedule
from support.served import SMALL, Reference, check_answer, prompts, trained
from support.stepped import GREEDY, Stepped, prompt

VOCAB, OUTPUT, LENGTH = 256, 22, 48
DRAFTED = SMALL.set(slots=2, rows=(2,), tokens=72, drafts=3)  # Few pages: some must wait, or be computed again.


class Oracle:
    """Guesses from the answers, wrong as often as it is told to be."""

    def __init__(self, answers, wrong, random):
        self._answers, self._wrong, self._random = answers, wrong, random
        self._tokens = ()

    def begin(self, guesser, sequence):
        if guesser._most > 0 and sequence.grammar is None:
            oracle = Oracle(self._answers, self._wrong, self._random)
            oracle._tokens = self._answers(sequence.request)
            given: Any = oracle  # In place of a lookup.
            sequence.guesses = Guesses(guesser._most, given)

    def after(self, tokens, count):
        if self._random.random() < self._wrong / 2:
            return []
        following = [*self._tokens[len(tokens) :], *[0] * count][:count]
        return [token + (token > 0 and self._random.random() < self._wrong) * -1 for token in following]


def oracle(monkeypatch, answers, wrong=0.3, seed=0):
    """Lets sequences guess from the tokens that `answers` has for their request."""
    given = Oracle(answers, wrong, Random(seed))
    monkeypatch.setattr(Guesser, "begin", lambda self, sequence: given.begin(self, sequence))


def answer_of(shape):
    """What a fake device says after a prompt, beyond all stop tokens."""

    def of(request):
        endless = dataclasses.replace(request, stop_tokens=frozenset())
        return [*request.tokens, *(token.id for token in expected(endless, shape))]

    return of


# On a device whose tokens are hashes of all that it reads.


@pytest.mark.parametrize("name", ["full", "windowed", "only windowed"])
@pytest.mark.parametrize("source", ["oracle", "device", "lookup"])
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_same_tokens_under_any_schedule_with_guesses(name, source, seed):
    random = Random(seed)
    drafts, costs = random.choice([1, 2, 4, 7, 15]), random.choice([(), (1.2, 1.5, 2.0)])
    shape = dataclasses.replace(TIGHT[name], drafts=drafts, own_drafts=source == "device", draft_costs=costs)
    cache = random.random() < 0.7
    fields = {"prefix_cache": cache, "chunk_budget": random.choice([4, 8, 64]), "ageing": random.choice([1, 1000])}
    with pytest.MonkeyPatch.context() as monkeypatch:
        if source == "oracle":
            oracle(monkeypatch, answer_of(shape), random.choice([0.0, 0.2, 0.7]), seed)
        stepped = Stepped(shape, FakeDevice(shape, poison=not cache), **fields)
        check_schedule(stepped, random)
    decoding = {(n, size) for n in shape.rows for size in (1, drafts + 1)}
    assert stepped.device.shapes <= decoding | {(1, n) for n in shape.chunks}
    stats = stepped.engine.stats()
    assert stats.accepted_tokens <= stats.drafted_tokens <= stepped.device.guessed
    assert stats.accepted_tokens <= stepped.device.held


@pytest.mark.parametrize("draw", [GREEDY, Draw(seed=5)], ids=["greedy", "drawn"])
def test_guesses_that_hold_save_steps(monkeypatch, draw):
    oracle(monkeypatch, answer_of(FULL), wrong=0.0)
    steps = {}
    for drafts in (0, 4):
        stepped = Stepped(dataclasses.replace(FULL, drafts=drafts))
        stream = stepped.submit(prompt(9), 50, draw=draw)
        (result,) = stepped.finish(stream)
        assert list(result.tokens) == expected(stream.request, FULL)
        steps[drafts] = stepped.device.calls
    assert steps[0] >= 50
    assert steps[4] <= 14  # 50 tokens, of which a step gives 5.
    stats = stepped.engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens == 50 - steps[4]  # A call gives one more.


def test_what_came_before_is_guessed_again():
    shape = dataclasses.replace(FULL, drafts=4)
    tokens = prompt(6)
    whole = (*tokens, *(token.id for token in expected(Request(tokens=tokens, max_tokens=20, draw=GREEDY), shape)))
    seen = []
    lookup = Lookup()
    for length in range(len(whole), 2 * len(whole)):
        seen.append(lookup.after((whole + whole)[:length], 3))
    assert seen[2:] == [list((whole * 3)[length : length + 3]) for length in range(len(whole) + 2, 2 * len(whole))]


def test_text_without_repetition_costs_few_steps_with_guesses(monkeypatch):
    shape = dataclasses.replace(FULL, drafts=4, max_length=1200, groups=(FULL.groups[0]._replace(pages=400),))
    oracle(monkeypatch, lambda request: [0] * 1200, wrong=0.0)  # Never right.
    stepped = Stepped(shape)
    steps = []
    verified = FakeDevice._verified
    monkeypatch.setattr(FakeDevice, "_verified", lambda *args: steps.append(1) or verified(*args))
    stream = stepped.submit([1, 2, 3], 1100, draw=Draw(logit_bias={1: 1.0}))
    stepped.finish(stream)
    assert 3 < len(steps) < 0.04 * 1100
    assert stepped.engine.stats().accepted_tokens < len(steps)


@settings(max_examples=50)
@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60), step=st.integers(1, 5))
def test_a_lookup_finds_the_latest_of_the_longest(tokens, step):
    lookup = Lookup()
    for end in range(1, len(tokens) + 1, step):
        known = tokens[:end]
        found = lookup.after(known, 6)
        alike = {}
        for place in range(2, end):
            if known[place - 2 : place] == known[-2:]:
                most = min(place, 8)
                alike[place] = next((n for n in range(2, most) if known[place - n - 1] != known[end - n - 1]), most)
        latest = sorted(alike, reverse=True)[:8]
        if not latest:
            assert found == []
            continue
        best = max(latest, key=lambda place: (alike[place], place))
        going_on = list(known)
        for i in range(6):
            going_on.append(going_on[best + i])
        assert found == going_on[end:]


# With models.


def requests(seed, count):
    """Requests that are drawn in all ways, every third one greedily, some with tokens at which they stop."""
    rng = np.random.default_rng(seed)
    made = []
    for i, tokens in enumerate(prompts(rng, count, VOCAB, LENGTH - OUTPUT)):
        how = GREEDY
        if i % 3:
            how = Draw(
                temperature=float(rng.uniform(0.3, 2.0)),
                top_p=float(rng.uniform(0.5, 1.0)),
                repetition_penalty=float(rng.choice([1.0, 1.3])),
                frequency_penalty=float(rng.choice([0.0, 0.5])),
                logit_bias={3: 1.0} if i % 4 == 0 else {},
                seed=int(rng.integers(2**32)),
            )
        stops = frozenset(range(0, VOCAB, 9) if i % 4 == 3 else ())
        new, logprobs = int(rng.integers(OUTPUT // 2, OUTPUT)), None if i % 5 == 3 else int(rng.integers(0, 4))
        made.append(Request(tokens=tokens, max_tokens=new, draw=how, logprobs=logprobs, stop_tokens=stops))
    return made


def check_equal(got, want):
    assert [token.id for token in got.tokens] == [token.id for token in want.tokens]
    assert got.finish == want.finish
    for mine, other in zip(got.tokens, want.tokens, strict=True):
        assert (mine.logprob is None) == (other.logprob is None)
        if mine.logprob is not None:
            assert mine.logprob == pytest.approx(other.logprob, abs=1e-5)
            np.testing.assert_allclose([p for _, p in mine.top], [p for _, p in other.top], atol=1e-5)


@functools.cache
def device_of(name):
    """A device with drafts, one with a draft model; what a busy machine measures of its steps is not what is tested."""
    device = ModelDevice(DRAFTED, trained(name), trained(name) if name == "gpt-oss-tiny" else None)
    device.shape = dataclasses.replace(device.shape, draft_costs=())
    return device


def check_speculation(device, model, seed, monkeypatch=None, count=9):
    """Answers requests one at a time without guesses; then with them, all at once, with few pages."""
    wanted, rng = requests(seed, count), np.random.default_rng(seed)
    shape = device.shape
    device.shape = dataclasses.replace(shape, drafts=0)
    with Engine.Config(prefix_cache=False).build(device=device) as engine:
        without = [engine.submit(request).result(120) for request in wanted]
        assert engine.stats().drafted_tokens == 0
    device.shape = shape
    if monkeypatch is not None:
        said = {
            id(request): [*request.tokens, *(token.id for token in answer.tokens)]
            for request, answer in zip(wanted, without, strict=True)
        }
        oracle(monkeypatch, lambda request: said[id(request)])
    with Engine.Config(chunk_budget=16).build(device=device) as engine:
        streams = []
        for request in wanted:
            streams.append(engine.submit(request))
            if rng.random() < 0.3:
                given_up = engine.submit(request)
                time.sleep(0.002)
                given_up.cancel()
        answers = [stream.result(120) for stream in streams]
        assert engine.drain(60)
        stats = engine.stats()
        assert all(each.used == 0 for each in stats.pages.values()), "no page is left behind"
    reference = Reference(model, LENGTH)
    for request, got, want in zip(wanted, answers, without, strict=True):
        check_equal(got, want)
        if request.draw.is_plain:
            check_answer(reference, request, got)
    return stats


@pytest.mark.parametrize(
    "name", ["llama3-tiny", pytest.param("gpt-oss-tiny", marks=pytest.mark.long), "deepseek-v3-tiny"]
)
def test_answers_of_models_are_those_without_guesses(name, monkeypatch):
    device = device_of(name)
    monkeypatch.setattr(device, "_drafter", None)
    monkeypatch.setattr(device, "shape", dataclasses.replace(device.shape, own_drafts=False))
    stats = check_speculation(device, trained(name), len(name), monkeypatch)
    assert 10 < stats.accepted_tokens < stats.drafted_tokens


@pytest.mark.long
def test_a_draft_model_changes_no_answer_and_one_that_is_the_model_is_always_right():
    model = trained("gpt-oss-tiny")
    device = device_of("gpt-oss-tiny")
    assert device.shape.own_drafts
    with Engine.Config().build(device=device) as engine:
        for length in (3, 20):
            before = engine.stats()
            engine.submit(Request(tokens=prompt(length), max_tokens=17, draw=GREEDY)).result(60)
            after = engine.stats()
            assert after.accepted_tokens - before.accepted_tokens == after.drafted_tokens - before.drafted_tokens > 8
            assert after.steps - before.steps < 10
    other = Trained(model.program, jax.tree.map(lambda x: x[..., ::-1], model.params), 0)
    device.swap(other.params)  # Now the draft model is another one.
    try:
        stats = check_speculation(device, other, 5, count=7)
    finally:
        device.swap(model.params)
    assert stats.accepted_tokens < stats.drafted_tokens


def test_a_draft_model_has_the_pages_that_it_needs():
    draft = ServedModel(trained("gpt-oss-tiny").program.cfg, DRAFTED)
    model = ServedModel(trained("llama3-tiny").program.cfg, DRAFTED, draft=draft)
    alone = ServedModel(trained("llama3-tiny").program.cfg, DRAFTED)
    assert [group.window for group in alone.shape.groups] == [None]
    assert {group.window for group in model.shape.groups} > {None}
    assert draft.shape == model.shape
    assert sum(model.page_bytes.values()) == sum(alone.page_bytes.values()) + sum(draft.page_bytes.values())


def test_a_repetitive_answer_takes_few_steps():
    always = Draw(temperature=0.0, logit_bias={7: 1e4})
    with Engine.Config().build(device=device_of("llama3-tiny")) as engine:
        answer = engine.submit(Request(tokens=(1, 7, 7, 7), max_tokens=40, draw=always, logprobs=1)).result(60)
        stats = engine.stats()
    assert [token.id for token in answer.tokens] == [7] * 40
    assert stats.steps < 16
    assert stats.accepted_tokens > 25
    found = Reference(trained("llama3-tiny"), LENGTH).logprobs([1, 7, 7, 7] + [7] * 40)[3:-1, 7]
    np.testing.assert_allclose([token.logprob for token in answer.tokens], found, atol=1e-5)


def test_models_whose_state_cannot_go_back_have_no_guesses():
    with pytest.raises(ConfigError, match=r"(?s)drafts is 3, but .* cannot go back .*Use drafts=0"):
        ModelDevice(DRAFTED, trained("hybrid-tiny"))
    with pytest.raises(ConfigError, match=r"(?s)drafts is 3, but .* cannot go back .*Use drafts=0"):
        ModelDevice(DRAFTED, trained("llama3-tiny"), trained("hybrid-tiny"))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match=r"drafts is 12, expected less than the largest chunk: 12"):
        DRAFTED.set(drafts=12).check()
    with pytest.raises(ConfigError, match=r"drafts is 0, expected how many"):
        ModelDevice(SMALL, trained("llama3-tiny"), trained("llama3-tiny"))
