# SPDX-License-Identifier: Apache-2.0
"""Masks are their truth tables, for any expression, and their bounds on keys leave out no pair that they allow."""

import functools
import operator
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.ops import EMPTY, And, Causal, Full, Mask, Or, Prefix, SameSegment, SlidingWindow, Tokens, Written
from support.reference import seen

LEAVES = st.one_of(
    st.sampled_from([Full(), Causal(), SameSegment(), Prefix(), Written()]),
    st.integers(1, 6).map(lambda size: SlidingWindow(size)),
)
PLACES = st.integers(0, 7) | st.just(EMPTY)
PAIRS = (operator.and_, operator.or_)
MASKS: st.SearchStrategy[Mask] = st.recursive(
    LEAVES, lambda below: st.builds(lambda op, a, b: op(a, b), st.sampled_from(PAIRS), below, below), max_leaves=5
)


@st.composite
def rows(draw, length: int, batch: int, in_order: bool) -> list[list[tuple[int, int | None, bool]]]:
    """Draws tokens `[B][T]`; in order, their places are 0, 1, ... as in a model."""
    count = length * batch
    places = list(range(length)) * batch if in_order else draw(st.lists(PLACES, min_size=count, max_size=count))
    segments = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count) | st.just([None] * count))
    prefix = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    tokens = list(zip(places, segments, prefix, strict=True))
    return [tokens[b * length : (b + 1) * length] for b in range(batch)]


def as_tokens(rows: list[list[tuple[int, int | None, bool]]]) -> Tokens:
    fields = [np.array([[token[i] for token in row] for row in rows]) for i in range(3)]
    segment = None if fields[1].dtype == object else fields[1].astype(np.int32)
    # NumPy arrays know the same operators and, unlike JAX, compile nothing for each new shape.
    return Tokens(*cast(Any, (fields[0].astype(np.int32), segment, fields[2])))


def allowed(mask: Mask, q: Tokens, k: Tokens) -> np.ndarray:
    table = np.asarray(mask.allowed(q, k))
    return np.broadcast_to(table, (q.index.shape[0], *table.shape[1:]))


@settings(max_examples=60)
@given(mask=MASKS, data=st.data())
def test_any_expression_is_its_truth_table(mask, data):
    q, k = (data.draw(rows(data.draw(st.integers(1, 4)), 2, in_order=False)) for _ in range(2))
    want = np.array([seen(mask, *pair) for pair in zip(q, k, strict=True)])
    np.testing.assert_array_equal(allowed(mask, as_tokens(q), as_tokens(k)), want)


@settings(max_examples=200)
@given(mask=MASKS, data=st.data())
def test_bounds_leave_out_no_pair_that_is_allowed(mask, data):
    length = data.draw(st.integers(1, 9))
    (row,) = data.draw(rows(length, 1, in_order=True))
    table = seen(mask, row, row)
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    low, high = mask.keys_for(start, stop, length)
    assert 0 <= low < high <= length
    outside = np.ones(length, bool)
    outside[low:high] = False
    assert not table[start:stop, outside].any()


@settings(max_examples=25)
@given(mask=MASKS, data=st.data())
def test_slices_of_tokens_give_slices_of_the_table(mask, data):
    tokens = as_tokens(data.draw(rows(4, 2, in_order=True)))
    (a, b), (c, d) = (sorted(data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))) for _ in range(2))
    part = allowed(mask, tokens.slice(a, b), tokens.slice(c, d))
    np.testing.assert_array_equal(part, allowed(mask, tokens, tokens)[:, a:b, c:d])


def table(mask: Mask, index=(0, 1, 2, 3), **fields) -> list[str]:
    tokens = Tokens(jnp.array([index]), **{name: jnp.array([row]) for name, row in fields.items()})
    return ["".join(".x"[int(cell)] for cell in row) for row in mask.allowed(tokens, tokens)[0]]


def test_tables_to_look_at():
    assert table(Full()) == ["xxxx"] * 4
    assert table(Causal()) == ["x...", "xx..", "xxx.", "xxxx"]
    assert table(Causal() & SlidingWindow(2)) == ["x...", "xx..", ".xx.", "..xx"]
    assert table(Causal() & SameSegment(), segment=[1, 1, 2, 0]) == ["x...", "xx..", "..x.", "...x"]
    assert table(Causal() | Prefix(), prefix=[True, True, False, False]) == ["xx..", "xx..", "xxx.", "xxxx"]
    assert table(Written(), index=[0, 1, EMPTY, EMPTY]) == ["xx.."] * 4
    assert table(Causal() | Prefix()) == table(Causal()), "without a prefix"
    assert table(Causal() & SameSegment()) == table(Causal()), "without documents"


@pytest.mark.parametrize(
    "mask, bounds",
    [
        (Full(), (0, 8)),
        (Causal(), (0, 4)),
        (SlidingWindow(2), (1, 8)),
        (Causal() & SlidingWindow(2), (1, 4)),
        (Causal() & SlidingWindow(99), (0, 4)),
        (Causal() & SameSegment(), (0, 4)),
        ((Causal() & SlidingWindow(1)) | (Causal() & SlidingWindow(2)), (1, 4)),
        (Causal() | Prefix(), (0, 8)),
    ],
)
def test_bounds_are_as_tight_as_a_kernel_needs(mask, bounds):
    """A bound of everything would be right too, and skip nothing."""
    assert mask.keys_for(2, 4, 8) == bounds


def test_masks_are_values():
    assert Causal() & SlidingWindow(3) == And(Causal(), SlidingWindow(3))
    assert Causal() | Prefix() == Or(Causal(), Prefix())
    assert Causal() & SlidingWindow(3) != Causal() & SlidingWindow(4)
    assert len({Causal(), Causal(), Full()}) == 2
    assert functools.reduce(operator.and_, [Causal(), Full(), Prefix()]) == And(And(Causal(), Full()), Prefix())


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_without_room_is_refused(size):
    with pytest.raises(ConfigError) as e:
        SlidingWindow(size)
    assert str(e.value) == f"SlidingWindow: size is {size}, expected at least 1."
