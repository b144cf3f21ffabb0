# SPDX-License-Identifier: Apache-2.0
"""Devices that fail, and parameters that change, while requests are under way: nobody waits for ever."""

import threading

import pytest

from dovetail.serve import Engine, EngineClosed
from dovetail.serve._request import Request
from support.fake_device import FULL, HYBRID, SHAPES, FakeDevice, expected
from support.pages import check_all_free
from support.stepped import GREEDY, Even, Stepped, prompt

SECONDS = 20


def request(tokens, max_tokens=4):
    return Request(tokens=tuple(tokens), max_tokens=max_tokens, draw=GREEDY)


@pytest.mark.parametrize("where", ["run", "fetch"])
@pytest.mark.parametrize("shape", [FULL, HYBRID], ids=["full", "hybrid"])
@pytest.mark.parametrize("number", range(0, 12, 2))
def test_a_call_that_fails_ends_its_own_requests_and_no_others(where, shape, number):
    stepped = Stepped(shape)
    stepped.device.fail_at[where, number] = RuntimeError("out of memory")
    streams = [stepped.submit(prompt(9, seed), 12) for seed in range(6)]
    results = stepped.finish(*streams)
    failed = [result for result in results if result.finish == "error"]
    assert 1 <= len(failed) <= 4
    assert all(result.error == "the device has failed: RuntimeError: out of memory" for result in failed)
    for stream, result in zip(streams, results, strict=True):
        want = expected(stream.request, shape)
        assert list(result.tokens) == (want if result.finish == "length" else want[: len(result.tokens)])
    check_all_free(stepped.engine._scheduler.pages)
    after = stepped.submit(prompt(9), 4)
    assert stepped.finish(after)[0].finish == "length"


def test_a_device_that_fails_again_and_again_is_given_up_and_everyone_is_told():
    device = FakeDevice(FULL)
    device.fail_at = {("run", number): RuntimeError("lost") for number in range(100)}
    engine = Engine.Config().build(device=device)
    streams = []
    with engine._changed:  # So that all are there before the first step.
        engine.start()
        streams = [engine.submit(request(prompt(9, seed))) for seed in range(9)]
    results = [stream.result(SECONDS) for stream in streams]
    assert {result.finish for result in results} == {"error"}
    assert all("RuntimeError: lost" in result.error for result in results)
    engine._thread.join(SECONDS)
    with pytest.raises(EngineClosed, match="3 calls have failed one after the other"):
        engine.submit(request((1,)))
    with pytest.raises(EngineClosed, match="3 calls have failed"):
        engine.swap(1)
    assert engine.drain(SECONDS)
    engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_in_the_engine_itself_ends_all_requests_with_an_error(monkeypatch):
    engine = Engine.Config().build(device=FakeDevice(FULL))
    monkeypatch.setattr(engine._scheduler, "plan", lambda settled: 1 / 0)
    engine.start()
    assert engine.submit(request((1,))).result(SECONDS).error == (
        "the engine has failed: ZeroDivisionError: division by zero"
    )
    engine._thread.join(SECONDS)
    with pytest.raises(EngineClosed, match="ZeroDivisionError"):
        engine.submit(request((1,)))


class Broken(Even):
    """A grammar that fails at one place."""

    def __init__(self, where, count=0):
        super().__init__(count)
        self.where = where

    def mask(self):
        if self.where == "mask" and self.count == 1:
            raise ValueError("no mask")
        return super().mask()

    def accept(self, token):
        if self.where == "accept":
            raise ValueError("not accepted")
        super().accept(token)

    def copy(self):
        if self.where == "copy":
            raise ValueError("no copy")
        return Broken(self.where, self.count)


@pytest.mark.parametrize("where", ["mask", "accept", "copy"])
def test_a_grammar_that_fails_ends_its_own_request_alone(where):
    stepped = Stepped(FULL)
    bad = stepped.submit(prompt(5), 9, grammar=Broken(where))
    good = stepped.submit(prompt(5), 9)
    results = stepped.finish(bad, good)
    assert results[0].finish == "error"
    assert "ValueError" in results[0].error
    assert list(results[1].tokens) == expected(good.request, FULL)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9])
def test_parameters_are_swapped_without_dropping_a_request(name, steps):
    shape = SHAPES[name]
    stepped = Stepped(shape)
    streams = [stepped.submit(prompt(17, seed % 2), 12) for seed in range(6)]
    stepped.step(steps)
    swap = threading.Thread(target=stepped.engine.swap, args=(1,))
    stepped.engine._thread = swap  # Alive, as the thread of an engine is.
    swap.start()
    while not stepped.engine._inbox and swap.is_alive():
        pass
    stepped.step()
    swap.join(SECONDS)
    before = {stream: len(stream._tokens) for stream in streams}
    for stream, result in zip(streams, stepped.finish(*streams), strict=True):
        got = [token.id for token in result.tokens]
        assert any(_swapped(stream.request, shape, got, at) for at in range(before[stream] + 1)), got
    again = stepped.submit(prompt(17, 0), 5)
    result = stepped.finish(again)[0]
    assert list(result.tokens) == expected(again.request, shape, params=1)


def _swapped(request, shape, got, at):
    """Whether an answer is written with the old parameters up to a token, and with the new ones from it on."""
    old = [token.id for token in expected(request, shape)][:at]
    return got == old + [token.id for token in expected(request, shape, params=1, output=old)]


def test_parameters_that_do_not_fit_are_refused_and_the_engine_goes_on():
    class Picky(FakeDevice):
        def swap(self, params):
            raise ValueError("other shapes")

    with Engine.Config().build(device=Picky(FULL)) as engine:
        with pytest.raises(ValueError, match="other shapes"):
            engine.swap(1)
        stream = engine.submit(request(prompt(9)))
        assert list(stream.result(SECONDS).tokens) == expected(stream.request, FULL)
