# SPDX-License-Identifier: Apache-2.0
"""Which values count after restarts, over what they are drawn, and that thinning hides no spike."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.board._records import Column, Heads, advance
from dovetail.board._series import Points, curve, points, restarts, seconds, units

VALUES = st.floats(-1e6, 1e6, width=32)


def read(records: list[dict[str, float]], *names: str) -> tuple[Heads, list[Column]]:
    data = b"".join(json.dumps({"step": 0, "time": 0.0, **record}).encode() + b"\n" for record in records)
    heads, columns = Heads(), [Column(name) for name in names]
    advance(lambda offset, count: data[offset : offset + count], len(data), [heads, *columns])
    return heads, columns


def losses(*steps: int) -> list[dict[str, float]]:
    return [{"step": step, "time": float(i), "loss": float(i)} for i, step in enumerate(steps)]


def test_steps_that_are_made_again_replace_those_made_before() -> None:
    heads, (loss,) = read(losses(10, 20, 30, 40, 30, 40, 50, 20, 30), "loss")
    found = points(heads, loss, loss)
    assert found.steps.tolist() == [10, 20, 30]
    assert found.values.tolist() == [0, 7, 8]
    assert heads.steps[restarts(heads, loss, [])].tolist() == [30, 20]


@given(st.lists(st.integers(1, 9), max_size=30))
def test_what_counts_is_what_a_dictionary_that_forgets_later_steps_holds(steps: list[int]) -> None:
    heads, (loss,) = read(losses(*steps), "loss")
    expected: dict[int, float] = {}
    for i, step in enumerate(steps):
        expected = {before: value for before, value in expected.items() if before < step} | {step: float(i)}
    found = points(heads, loss, loss)
    assert dict(zip(found.steps.tolist(), found.values.tolist(), strict=True)) == expected
    assert found.steps.tolist() == sorted(expected)


def test_an_evaluation_of_a_step_that_was_lost_counts_no_more_and_others_do() -> None:
    records = losses(10, 20)
    records += [{"step": 20, "eval/loss": 2.0}, *losses(30, 40), {"step": 40, "eval/loss": 4.0}]
    heads, (loss, evaluation) = read([*records, *losses(30)], "loss", "eval/loss")
    found = points(heads, evaluation, loss)
    assert found.values.tolist() == [2.0]
    # The same step, evaluated again.
    heads, (loss, evaluation) = read([*records, *losses(30, 40), {"step": 40, "eval/loss": 5.0}], "loss", "eval/loss")
    assert points(heads, evaluation, loss).values.tolist() == [2.0, 5.0]


def test_a_message_about_a_later_step_takes_nothing_away() -> None:
    records = [*losses(10, 20), {"step": 90, "other": 1.0}, {"step": 5, "other": 2.0}, *losses(30)]
    heads, (loss,) = read(records, "loss")
    assert points(heads, loss, loss).steps.tolist() == [10, 20, 30]


def test_a_restart_that_loses_no_step_is_known_from_when_it_was() -> None:
    heads, (loss,) = read(losses(10, 20, 30), "loss")
    assert heads.steps[restarts(heads, loss, [1.5])].tolist() == [30]
    assert restarts(heads, loss, [-5.0, 99.0]).tolist() == []  # Before the first row, and after the last.


def test_time_never_falls_whatever_clocks_do() -> None:
    records = [{"step": i, "time": time, "loss": 1.0} for i, time in enumerate([100.0, 110.0, 50.0, 60.0, 60.0, 61.0])]
    heads, _ = read(records)
    assert seconds(heads, None).tolist() == [0, 10, 10, 20, 20, 21]
    assert seconds(heads, 95.0).tolist() == [5, 15, 15, 25, 25, 26]
    assert seconds(heads, 999.0)[0] == 0  # A first start after the first row is that of another clock.


def test_units_are_summed_over_steps_that_were_not_logged() -> None:
    steps, sums = units(Points(np.arange(3), np.array([1, 10, 20]), np.array([5.0, 10.0, 20.0])))
    assert steps.tolist() == [0, 1, 10, 20]
    assert sums.tolist() == [0, 5, 5 + 9 * 10, 5 + 9 * 10 + 10 * 20]


def test_what_fits_is_not_thinned() -> None:
    found = curve(np.arange(5.0), np.arange(5.0), np.array([2.0]), begin=None, end=None, most=5)
    assert (found.x, found.y, found.low, found.high) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], None, None)
    assert (found.restarts, found.bad, found.total) == ([2.0], [], 5)


@given(st.lists(VALUES, min_size=3, max_size=200), st.integers(2, 20), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_thinning_keeps_all_extremes_and_every_mean_is_of_its_bucket(values, most, random) -> None:
    x = np.cumsum([random.choice([0.0, 1.0, 1.0, 50.0]) for _ in values])
    y = np.array(values)
    found = curve(x, y, np.empty(0), begin=None, end=None, most=most)
    if found.low is None or found.high is None:
        assert len(values) <= most
        return
    assert len(found.x) <= most
    assert found.x == sorted(found.x)
    assert min(found.low) == pytest.approx(y.min(), rel=1e-6)
    assert max(found.high) == pytest.approx(y.max(), rel=1e-6)
    assert all(low <= mean <= high for low, mean, high in zip(found.low, found.y, found.high, strict=True))
    # By hand: buckets of equal width.
    width = (x[-1] - x[0]) / most or 1.0
    numbers = np.searchsorted(np.linspace(x[0], x[-1], most + 1)[1:-1], x, side="right") if width else x * 0
    means = [y[numbers == number].mean() for number in np.unique(numbers)]
    assert len(found.y) == len(means)
    np.testing.assert_allclose(found.y, means, rtol=1e-5, atol=1e-5)


def test_values_that_are_not_finite_are_places_and_no_values() -> None:
    y = np.array([1.0, math.nan, 2.0, math.inf, -math.inf, 3.0])
    found = curve(np.arange(6.0), y, np.empty(0), begin=None, end=None, most=10)
    assert (found.x, found.y, found.bad, found.total) == ([0, 2, 5], [1, 2, 3], [1, 3, 4], 6)
    only = curve(np.arange(2.0), np.array([math.nan, math.nan]), np.empty(0), begin=None, end=None, most=10)
    assert (only.x, only.y, only.bad) == ([], [], [0, 1])


def test_a_range_is_thinned_by_itself() -> None:
    x = np.arange(1000.0)
    found = curve(x, x, np.array([5.0, 150.0]), begin=100, end=199, most=100)
    assert (found.total, found.x, found.low, found.restarts) == (100, x[100:200].tolist(), None, [150.0])
    empty = curve(x, x, np.empty(0), begin=5000, end=None, most=100)
    assert (empty.total, empty.x, empty.low) == (0, [], None)


def test_values_near_the_largest_float_do_not_overflow_their_mean() -> None:
    y = np.full(10, 1.7e308)
    found = curve(np.arange(10.0), y, np.empty(0), begin=None, end=None, most=2)
    assert found.y == pytest.approx([1.7e308, 1.7e308])
