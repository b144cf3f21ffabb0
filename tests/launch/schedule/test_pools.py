# SPDX-License-Identifier: Apache-2.0
"""Pools in blocks, and trees of teams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.launch.schedule import Pool, Team


@given(st.integers(1, 96), st.lists(st.integers(1, 300), max_size=12))
def test_parts_of_blocks_fill_them_whenever_their_sum_does(block, asked):
    pool = Pool(name="a", count=0, block=block)
    taken = [pool.occupies(chips) for chips in asked]
    assert all(most >= chips for most, chips in zip(taken, asked, strict=True))
    parts = sorted((size for size in taken if size < block), reverse=True)
    free = list[int]()
    for size in parts:  # First fit.
        at = next((i for i, left in enumerate(free) if left >= size), None)
        if at is None:
            free.append(block)
            at = len(free) - 1
        free[at] -= size
    assert len(free) == -(-sum(parts) // block)
    assert all(size % block == 0 for size in taken if size >= block)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"count": 50, "block": 8}, r"count \(50\) must be a multiple of block \(8\).*\n.*Use count = 48 or 56"),
        ({"count": -1}, r"count is -1, expected at least 0"),
        ({"count": 8, "hardware": "tpu-v5"}, r"there is no chip 'tpu-v5'. Did you mean"),
        ({"count": 8, "shapes": [4, 16]}, r"shapes has 16, expected numbers of chips from 1 to count \(8\)"),
        ({"count": 8, "price": -2.0}, r"price is -2.0, expected a number of at least 0"),
        ({"count": 8, "kind": "spot"}, r"it is spot.*\n.*Add interruptions"),
    ],
)
def test_a_pool_that_makes_no_sense_is_an_error(fields, message):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        Pool(name="a", **fields).check()


def test_a_cycle_of_teams_is_an_error_that_names_it():
    teams = {name: Team(name=name, parent=parent) for name, parent in [("x", "y"), ("y", "z"), ("z", "x")]}
    with pytest.raises(ConfigError, match=r"its quota comes from itself: x -> y -> z -> x"):
        teams["x"].check({}, teams)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"quota": {"b": 1}}, r"quota: there is no pool 'b'.*There are: a"),
        ({"quota": {"a": -1}}, r"quota of a is -1"),
        ({"borrow": -1}, r"borrow is -1"),
        ({"parent": "y"}, r"parent: there is no team 'y'"),
    ],
)
def test_a_team_that_makes_no_sense_is_an_error(fields, message):
    team = Team(name="x", **fields)
    with pytest.raises(ConfigError, match=message):
        team.check({"a": Pool(name="a", count=1)}, {"x": team})


def test_the_price_of_chips_is_that_of_the_catalogue_unless_given():
    assert Pool(name="mine", hardware="tpu-v5p", count=4).chip_hour > 0
    assert Pool(name="tpu-v5p", count=4, price=1.5).chip_hour == 1.5
    assert Pool(name="unheard", count=4).chip_hour == 0
