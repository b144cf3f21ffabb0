# SPDX-License-Identifier: Apache-2.0
"""Random requests in random order to an engine on a fake device, and what their answers must be."""

from dovetail.serve._device import Group
from dovetail.serve._request import Draw, Request

from .fake_device import expected, expected_prompt, shape_of
from .pages import check_all_free, check_pages
from .stepped import GREEDY, Even, prompt

TIGHT = {  # Few pages, so that sequences are preempted.
    "full": shape_of(groups=(Group("full", None, 17),)),
    "windowed": shape_of(groups=(Group("full", None, 18), Group("near", 6, 11))),
    "only windowed": shape_of(groups=(Group("near", 6, 11), Group("far", 11, 13))),
    "hybrid": shape_of(groups=(Group("full", None, 18), Group("near", 6, 11)), has_row_state=True, snapshots=3),
    "recurrent": shape_of(groups=(), has_row_state=True, snapshots=2),
    "unsaved": shape_of(groups=(Group("full", None, 17),), has_row_state=True),
}
PREFIXES = [prompt(30, seed) for seed in (1, 2)]


DRAWS = [
    GREEDY,
    GREEDY,
    Draw(seed=3),
    Draw(temperature=0.5, top_k=3, seed=7),
    Draw(temperature=0, repetition_penalty=1.5),
    Draw(temperature=0.7, presence_penalty=0.5, logit_bias={1: 2.0}),
]


def any_request(random):
    """A request of any kind."""
    tokens = random.choice(PREFIXES)[: random.choice([0, 4, 12, 30, random.randrange(31)])]
    tokens += tuple(random.randrange(50) for _ in range(random.randrange(7) if tokens else 3))
    return Request(
        tokens=tokens,
        max_tokens=random.choice([0, 1, 5, 12, 25, 40]),
        draw=random.choice(DRAWS),
        stop_tokens=frozenset(random.choice([(), (), range(2), range(20)])),
        logprobs=random.choice([None, None, 0, 2]),
        prompt_logprobs=random.choice([None, None, None, None, 1]),
        priority=random.choice([-1, 0, 0, 1]),
        grammar=random.choice([None, None, None, None, Even()]),
        choice=random.randrange(3),
        salt=random.choice(["", "", "", "a"]),
    )


def check_answer(request, result, shape, limit):
    """Asserts that an answer is the one that its tokens alone give."""
    want = expected(request, shape, limit=limit)
    assert [token.id for token in result.tokens] == [token.id for token in want]
    assert list(result.tokens) == want
    if request.prompt_logprobs is not None:
        assert result.prompt == expected_prompt(request, shape)
        assert result.cached == 0
    else:
        assert result.prompt == ()
    stopped = bool(want) and want[-1].id in request.stop_tokens
    done = request.grammar is not None and len(want) == 3
    assert result.finish == ("stop" if stopped or done else "length")


def check_schedule(stepped, random):
    """Sends requests to an engine, some of which are given up, and asserts that all is right until the last."""
    engine, shape, streams, cancelled = stepped.engine, stepped.device.shape, [], []
    for _ in range(random.randrange(1, 16)):
        streams.append(engine.submit(any_request(random)))
        for _ in range(random.choice([0, 0, 0, 1, 3, 10])):
            stepped.step()
            check_pages(engine._scheduler.pages, [s.held for s in engine._scheduler.running if s.held])
        if random.random() < 0.15:
            cancelled.append(random.choice(streams))
            cancelled[-1].cancel()
    for stream, result in zip(streams, stepped.finish(*streams), strict=True):
        if stream in cancelled and result.finish == "abort":
            want = expected(stream.request, shape, limit=engine.max_length)
            assert list(result.tokens) == want[: len(result.tokens)]
        else:
            check_answer(stream.request, result, shape, engine.max_length)
    check_all_free(engine._scheduler.pages)
    assert (engine._open, engine._queued, engine.stats().waiting) == (0, 0, 0)
    assert engine.stats().generated_tokens == sum(len(stream.result(0).tokens) for stream in streams)
