# SPDX-License-Identifier: Apache-2.0
"""The engine: what is asked, what is refused, how answers come, and what happens when something fails."""

import asyncio
import threading

import pytest

from dovetail.config import ConfigError
from dovetail.serve import Engine, EngineClosed
from dovetail.serve._device import Group
from dovetail.serve._request import Draw, QueueFull, Request, RequestError
from support.fake_device import FULL, HYBRID, RECURRENT, WINDOWED, FakeDevice, expected, expected_prompt, shape_of
from support.pages import check_all_free
from support.stepped import GREEDY, Even, Stepped, prompt

SECONDS = 20  # What is waited for, at most.


def request(tokens=(1, 2, 3), max_tokens=4, **fields):
    return Request(tokens=tuple(tokens), max_tokens=max_tokens, **{"draw": GREEDY, **fields})


def ids(result):
    return [token.id for token in result.tokens]


def right(stream, shape=FULL):
    return ids(stream.result(0)) == [token.id for token in expected(stream.request, shape)]


def engine_of(device=None, **fields):
    return Engine.Config(**fields).build(device=device or FakeDevice(FULL))


# What users of other servers have reported.


def test_when_a_client_has_gone_its_pages_are_free_at_once_and_its_prefix_is_kept():
    stepped = Stepped(FULL)
    stream = stepped.submit(prompt(20), 40)
    stepped.step(5)
    stream.cancel()
    stepped.step()
    assert stream.result(0).finish == "abort"
    stats = stepped.engine.stats()
    assert (stats.running, stats.waiting, stats.pages["full"].used) == (0, 0, 0)
    calls = stepped.device.calls
    stepped.step(3)
    assert stepped.device.calls == calls
    again = stepped.submit(prompt(20))
    assert stepped.finish(again)[0].cached == 16


@pytest.mark.parametrize("shape", [FULL, WINDOWED, HYBRID, RECURRENT], ids=["full", "windowed", "hybrid", "recurrent"])
def test_a_prefix_that_is_kept_changes_no_answer(shape):
    stepped = Stepped(shape)
    base = prompt(30)
    for tokens in (base, base, (*base[:29], 7), (*base[:14], 7, *base[15:]), (7, *base[1:]), base[:17]):
        stream = stepped.submit(tokens, 12)
        stepped.finish()
        assert right(stream, shape), tokens
    other = stepped.submit(base, salt="other")
    assert stepped.finish(other)[0].cached == 0


def test_a_hybrid_model_does_hit_where_a_snapshot_was_made():
    stepped = Stepped(HYBRID)
    base = prompt(30)
    first, again = stepped.submit(base), stepped.submit(base)
    assert [result.cached for result in stepped.finish(first, again)] == [0, 28]


def test_a_hybrid_model_makes_a_snapshot_where_prompts_part():
    stepped = Stepped(HYBRID)
    system = prompt(17)
    cached = []
    for seed in (1, 2, 3):
        stream = stepped.submit((*system, *prompt(9, seed)))
        cached.append(stepped.finish(stream)[0].cached)
        assert right(stream, HYBRID)
    assert cached == [0, 0, 16]


@pytest.mark.parametrize("shape", [FULL, HYBRID, RECURRENT], ids=["full", "hybrid", "recurrent"])
def test_the_next_turn_of_a_talk_begins_after_the_last_answer(shape):
    stepped = Stepped(shape)
    first = stepped.submit(prompt(10), 21)
    answer = ids(stepped.finish(first)[0])
    second = stepped.submit((*prompt(10), *answer, 5, 6))
    assert stepped.finish(second)[0].cached == 28  # Of 31, the last of which was never read.
    assert right(second, shape)


def test_what_does_not_fit_is_said_at_the_start_with_what_would():
    few = shape_of(groups=(Group("near", 30, 9),))
    with pytest.raises(ConfigError, match=r"'near': there are 9.*window of 30 tokens and a chunk of 4 need 11"):
        engine_of(FakeDevice(few))
    less = engine_of(FakeDevice(shape_of(groups=(Group("full", None, 6),))))
    assert less.max_length == 21
    with pytest.raises(RequestError, match="has 21 tokens, expected at most 20"):
        less.check(request(range(21)))
    less.check(request(range(20)))


def test_a_full_cache_makes_nothing_much_slower_and_computing_again_is_no_hit():
    shape = shape_of(groups=(Group("full", None, 33),))  # 128 tokens; eight answers of 56 need 448.
    stepped = Stepped(shape)
    streams = [stepped.submit(prompt(16, seed), 40) for seed in range(8)]
    stepped.finish()
    stats = stepped.engine.stats()
    assert all(right(stream, shape) for stream in streams)
    assert stats.preemptions > 0
    assert stats.cached_tokens == 0
    assert stats.prompt_tokens == 8 * 16
    assert stats.generated_tokens == 8 * 40
    assert stepped.device.computed < 1.25 * 8 * 56


def test_several_answers_to_a_prompt_with_a_seed_differ_and_can_be_had_again():
    def answers(order, company):
        stepped = Stepped(FULL)
        for seed in range(company):
            stepped.submit(prompt(9, seed), 7, draw=Draw(seed=seed))
        stepped.step(company)
        streams = {choice: stepped.submit(prompt(9), 8, draw=Draw(seed=5), choice=choice) for choice in order}
        stepped.finish()
        return {choice: ids(stream.result(0)) for choice, stream in streams.items()}

    alone = answers((0, 1, 2), 0)
    assert len(set(map(tuple, alone.values()))) == 3
    assert answers((2, 0, 1), 3) == alone


def test_logprobs_do_not_depend_on_the_schedule():
    def answer(company, **fields):
        stepped = Stepped(FULL, **fields)
        others = [stepped.submit(prompt(25, seed), 9, draw=Draw(seed=seed)) for seed in range(company)]
        stepped.step(company)
        stream = stepped.submit(prompt(22, 99), 9, logprobs=2, prompt_logprobs=1)
        stepped.finish(*others)
        return stream.result(0)

    alone = answer(0)
    assert list(alone.tokens) == expected(request(prompt(22, 99), 9, logprobs=2), FULL)
    assert alone.prompt == expected_prompt(request(prompt(22, 99), prompt_logprobs=1), FULL)
    assert answer(5, chunk_budget=4) == alone
    assert answer(2, chunk_budget=16) == alone


# Requests.


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"tokens": ()}, "the prompt is empty"),
        ({"tokens": (1, 50)}, "the token 50, expected 0 to 49"),
        ({"tokens": (-1,)}, "the token -1"),
        ({"tokens": (1,) * 64}, "64 tokens, expected at most 63"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"logprobs": 4}, "logprobs is 4, expected 0 to 3"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1"),
        ({"choice": 2**31}, "choice is"),
        ({"draw": Draw(top_p=2.0)}, "top_p is 2.0"),
        ({"draw": Draw(logit_bias={50: 1.0})}, "logit_bias has 50"),
        ({"draw": Draw(logit_bias=dict.fromkeys(range(8), 1.0))}, "logit_bias has 8 tokens, expected at most 7."),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(RequestError, match=message):
        Stepped(FULL).engine.submit(request(**fields))


def test_a_full_queue_refuses_and_says_when_to_come_again():
    stepped = Stepped(FULL, queue=2)
    streams = [stepped.submit((1,)) for _ in range(2)]
    with pytest.raises(QueueFull) as refused:
        stepped.submit((1,))
    assert 1 <= refused.value.retry_after <= 60
    streams[0].cancel()
    stepped.step()
    stepped.submit((1,))
    stepped.finish()


def test_an_answer_ends_with_a_stop_token_a_grammar_or_a_limit():
    stepped = Stepped(FULL)
    free = stepped.submit(prompt(5), 12)
    stepped.finish()
    stop = ids(free.result(0))[6]
    stopped = stepped.submit(prompt(5), 12, stop_tokens=frozenset({stop}))
    written = stepped.submit(prompt(5), 12, grammar=Even())
    long = stepped.submit(prompt(60), 12)
    results = stepped.finish(stopped, written, long, free)
    assert [result.finish for result in results] == ["stop", "stop", "length", "length"]
    assert ids(results[0]) == ids(results[3])[: ids(results[3]).index(stop) + 1]
    assert len(results[1].tokens) == 3
    assert len(results[2].tokens) == 4  # 64 with the prompt.


def test_a_prompt_can_be_read_for_its_log_probabilities_alone():
    stepped = Stepped(HYBRID)
    for tokens in (prompt(21), prompt(21), (3,), prompt(64)):
        stream = stepped.submit(tokens, 0, prompt_logprobs=2)
        result = stepped.finish(stream)[0]
        assert (result.tokens, result.finish, result.cached) == ((), "length", 0)
        assert result.prompt == expected_prompt(stream.request, HYBRID)


def test_how_tokens_are_drawn_is_passed_only_where_it_matters():
    stepped = Stepped(FULL)
    stepped.submit(prompt(5), 6)
    stepped.finish()
    assert stepped.device.without_draw == stepped.device.calls
    for fields in ({"draw": Draw()}, {"logprobs": 0}, {"grammar": Even()}):
        calls = stepped.device.calls, stepped.device.without_draw
        stepped.submit((1,), 3, **fields)
        stepped.finish()
        assert stepped.device.calls > calls[0]
        assert stepped.device.without_draw == calls[1]


# Steps.


class Recorded(FakeDevice):
    """Remembers the order of calls, and which rows followed a token that the host had not seen."""

    def __init__(self, shape):
        super().__init__(shape)
        self.order = []

    def run(self, rows):
        self.order.append(("run", self.calls, bool(rows.follows.any())))
        return super().run(rows)

    def fetch(self, started):
        self.order.append(("fetch", started[0], False))
        return super().fetch(started)


def test_a_step_is_started_before_the_tokens_of_the_one_before_are_fetched():
    device = Recorded(FULL)
    stepped = Stepped(FULL, device)
    stepped.submit(prompt(4), 4)
    stepped.finish()
    order = [(what, number) for what, number, _ in device.order]
    assert order[:5] == [("run", 0), ("run", 1), ("fetch", 0), ("run", 2), ("fetch", 1)]


def test_a_grammar_is_never_ahead_of_its_last_token():
    stepped = Stepped(FULL)
    written = stepped.submit(prompt(4), 9, grammar=Even())
    other = stepped.submit(prompt(7), 9)
    stepped.finish()
    assert right(written)
    assert right(other)
    device = Recorded(FULL)
    alone = Stepped(FULL, device)
    alone.submit(prompt(4), 9, grammar=Even())
    alone.finish()
    assert not any(follows for _, _, follows in device.order)


def test_answers_to_one_prompt_compute_it_once():
    stepped = Stepped(FULL)
    streams = [stepped.submit(prompt(41), 3, draw=Draw(seed=1), choice=choice) for choice in range(4)]
    results = stepped.finish(*streams)
    assert [result.cached for result in results] == [0, 40, 40, 40]
    assert stepped.device.computed < 41 + 3 + 3 * (1 + 3)


def test_who_waits_for_a_prefix_goes_on_by_itself_when_its_leader_has_gone():
    stepped = Stepped(FULL, chunk_budget=4)
    streams = [stepped.submit(prompt(41), 3) for _ in range(3)]
    stepped.step(3)
    streams[0].cancel()
    results = stepped.finish(*streams)
    assert results[0].finish == "abort"
    assert right(streams[1])
    assert right(streams[2])


# Threads and event loops.


def test_answers_are_read_in_an_event_loop_while_they_are_written():
    async def read(stream):
        return [progress async for progress in stream]

    async def main(engine):
        streams = [engine.submit(request(prompt(9, seed), 12)) for seed in range(6)]
        return streams, await asyncio.wait_for(asyncio.gather(*map(read, streams)), SECONDS)

    with engine_of() as engine:
        streams, read_streams = asyncio.run(main(engine))
    for stream, progress in zip(streams, read_streams, strict=True):
        assert [t.id for part in progress for t in part.tokens] == ids(stream.result(0))
        assert [part.finish for part in progress[:-1]] == [None] * (len(progress) - 1)
        assert progress[-1].finish == "length"
        assert right(stream)
        assert stream.arrived <= stream.first <= stream.ended


def test_what_nobody_reads_comes_at_once():
    stepped = Stepped(FULL)
    stream = stepped.submit(prompt(9), 12, prompt_logprobs=0)

    async def read():
        return [progress async for progress in stream]

    stepped.finish()
    (progress,) = asyncio.run(read())
    assert progress == stream.result(0)
    assert len(progress.prompt) == 9


def test_a_request_whose_event_loop_has_ended_is_cancelled():
    stepped = Stepped(FULL)
    stream = stepped.submit(prompt(9), 40)
    loop = asyncio.new_event_loop()
    stream._waiter = loop.create_future()  # As of a task that waits for it.
    loop.close()
    stepped.finish()
    assert stream.result(0).finish == "abort"
    assert len(stream.result(0).tokens) < 4


def test_many_threads_ask_at_once():
    answers = {}

    def ask(engine, seed):
        for i in range(5):
            stream = engine.submit(request(prompt(1 + (seed * 7 + i) % 30, seed), 6))
            answers[seed, i] = stream.result(SECONDS) and right(stream)

    with engine_of() as engine:
        threads = [threading.Thread(target=ask, args=(engine, seed)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.drain(SECONDS)
        check_all_free(engine._scheduler.pages)
    assert len(answers) == 40
    assert all(answers.values())


def test_an_engine_that_is_drained_takes_nothing_new_and_finishes_the_rest():
    engine = engine_of()
    with pytest.raises(EngineClosed, match="not been started"):
        engine.submit(request())
    engine.start()
    streams = [engine.submit(request(prompt(9, seed), 30)) for seed in range(9)]
    assert engine.drain(SECONDS)
    assert all(right(stream) for stream in streams)
    with pytest.raises(EngineClosed, match="about to end"):
        engine.submit(request())
    engine.close()
    with pytest.raises(EngineClosed, match="has been closed"):
        engine.submit(request())
    engine.close()


class Slow(FakeDevice):
    """Waits before it hands out tokens, until it is let go."""

    def __init__(self, shape):
        super().__init__(shape)
        self.go = threading.Event()

    def fetch(self, started):
        assert self.go.wait(SECONDS)
        return super().fetch(started)


def test_close_ends_all_that_is_under_way():
    device = Slow(FULL)
    engine = engine_of(device)
    engine.start()
    streams = [engine.submit(request(prompt(9), 50)) for _ in range(9)]
    with pytest.raises(TimeoutError, match="has not ended after"):
        streams[0].result(0.01)
    assert not engine.drain(0.01)
    threading.Timer(0.05, device.go.set).start()
    engine.close()
    assert {stream.result(0).finish for stream in streams} == {"abort"}
    streams[0].cancel()
