# SPDX-License-Identifier: Apache-2.0
"""Scales and their ticks."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dovetail.pictures import scale_of

_ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(_ANY, max_size=20), st.booleans())
def test_every_value_has_a_place_and_ticks_are_on_the_axis(values: list[float], log: bool):
    scale = scale_of(values, 0.0, 100.0, log=log)
    assert all(0 <= scale.place(value) <= 100 for value in values if math.isfinite(value))
    ticks = scale.ticks()
    assert all(scale.low <= tick <= scale.high * (1 + 1e-9) or math.isclose(tick, scale.low) for tick in ticks)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 20


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_labels_tell_ticks_apart(low: float, span: float):
    labels = [label for _, label in scale_of([low, low + span], 0.0, 100.0).labels()]
    assert len(labels) >= 2
    assert len(set(labels)) == len(labels) or span < abs(low) * 1e-2


def test_larger_values_are_further_on():
    for log in (False, True):
        scale = scale_of([1.0, 100.0], 0.0, 10.0, log=log)
        places = [scale.place(value) for value in (1.0, 3.0, 10.0, 100.0)]
        assert places == sorted(places)
        assert places[0] < places[-1]
    assert math.isclose(scale.place(10.0), 5.0)  # The middle, of the logarithms.


def test_ticks_are_round():
    assert scale_of([0.0, 10.0], 0.0, 1.0, margin=0.0).ticks() == [0, 2, 4, 6, 8, 10]
    assert scale_of([1.0, 1e4], 0.0, 1.0, log=True, margin=0.0).ticks() == [1, 10, 100, 1000, 10_000]
