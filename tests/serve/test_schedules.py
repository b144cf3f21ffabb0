# SPDX-License-Identifier: Apache-2.0
"""Under any schedule, an answer is the one that its tokens alone give: chunks, hits, preemption, cancels, swaps."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_device import SHAPES, FakeDevice, expected
from support.schedules import TIGHT, check_schedule
from support.stepped import Stepped, prompt


@pytest.mark.parametrize("name", TIGHT)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_same_tokens_under_any_schedule(name, seed):
    shape, random = TIGHT[name], Random(seed)
    cache = random.random() < 0.7
    stepped = Stepped(
        shape,
        FakeDevice(shape, poison=not cache),
        prefix_cache=cache,
        chunk_budget=random.choice([4, 8, 64]),
        ageing=random.choice([1, 10, 1000]),
    )
    check_schedule(stepped, random)
    assert stepped.device.shapes <= {(n, 1) for n in shape.rows} | {(1, n) for n in shape.chunks}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_answer_is_the_one_that_the_tokens_alone_give(shape):
    stepped = Stepped(shape)
    streams = [stepped.submit(prompt(length, length), 9) for length in (1, 3, 4, 5, 8, 17, 33, 50)]
    for stream, result in zip(streams, stepped.finish(*streams), strict=True):
        assert list(result.tokens) == expected(stream.request, shape)
        assert result.finish == "length"
