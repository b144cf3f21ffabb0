# SPDX-License-Identifier: Apache-2.0
"""Plans: order by what is asked for, deadlines, ties, and what has to be known."""

import functools
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.plan import (
    Plan,
    Pool,
    Wanted,
    is_late,
    plan,
    pools_on,
    rank_correlation,
    ranked,
    retimed,
    tied,
    to_verify,
)
from dovetail.plan._search import is_tie
from dovetail.zoo import recipe


@functools.cache
def planned(by: Any = "time", deadline: float | None = None) -> Plan:
    wanted = Wanted(1e12, by, deadline)
    return plan(recipe("llama2-7b"), pools_on(["tpu-v5p-64", "gpu-h100-64", "gpu-h100-32"]), wanted)


def test_rows_are_in_the_order_of_what_is_asked_for():
    for by in ("time", "cost", "energy"):
        values = [row.value(by) for row in planned(by).rows]
        assert values == sorted(values)
    assert planned("time").rows[0].hardware.name == "gpu-h100-64"
    assert planned("energy").rows[-1].energy is None  # The power of TPUs is not published.


def test_days_cost_and_energy_follow_from_the_step():
    row = planned().rows[0]
    cfg, pool = row.cfg, row.pool
    steps = 1e12 / (cfg.input.batch_size * 4096)
    hours = steps * row.seconds / 3600 / pool.goodput(64).share
    assert math.isclose(row.days * 24, hours)
    assert row.cost is not None
    assert row.energy is not None
    assert math.isclose(row.cost, hours * 64 * 6.88)
    assert math.isclose(row.energy, hours * 64 * 700 * 1.4 / 1e6)
    assert row.interval[0] < row.seconds < row.interval[1]
    assert math.isclose(sum(row.parts.values()), row.seconds)


def test_what_misses_the_deadline_comes_last_and_the_cheapest_that_meets_it_first():
    every = planned("cost").rows
    days = sorted({row.days for row in every})
    deadline = days[len(days) // 2] * 86_400
    found = planned("cost", deadline)
    late = [is_late(row, found.wanted) for row in found.rows]
    assert any(late)
    assert not all(late)
    assert late == sorted(late)
    in_time = [row for row in found.rows if not is_late(row, found.wanted)]
    assert in_time[0].cost == min(row.value("cost") for row in in_time)


def test_what_the_mesh_rules_choose_is_a_row_of_each_hardware_and_never_better():
    rows = planned().rows
    for name, group in itertools.groupby(
        sorted(rows, key=lambda row: row.hardware.name), lambda row: row.hardware.name
    ):
        same = list(group)
        (by_rules,) = (row for row in same if row.by_rules)
        assert min(row.seconds for row in same) <= by_rules.seconds, name


def test_ties_are_the_same_both_ways():
    rows = planned().rows
    for a, b in itertools.combinations(rows[:6], 2):
        assert tied(a, b, "time") == tied(b, a, "time") == is_tie(a.days, b.days)
    assert not tied(planned("energy").rows[-1], planned("energy").rows[0], "energy")


def test_those_to_verify_are_different_near_the_best_and_start_with_it():
    found = planned()
    chosen = to_verify(found, 5)
    assert chosen[0] == 0
    assert len(set(chosen)) == len(chosen) <= 6
    assert all(found.rows[i].days <= 1.1 * found.rows[0].days for i in chosen[:5])
    assert any(found.rows[i].by_rules for i in chosen)


def test_times_of_compiled_programs_decide_and_others_are_scaled_by_them():
    found = planned()
    rows = [row for row in found.rows if row.hardware.name == "gpu-h100-64"][:3]
    compiled = [3 * rows[0].seconds, 1.5 * rows[1].seconds, None]
    timed = [row._replace(compiled_seconds=each) for row, each in zip(rows, compiled, strict=True)]
    again = retimed(found, timed).rows
    days = {row.cfg: row.days for row in again}
    assert again[0].cfg == rows[1].cfg
    assert days[rows[0].cfg] == pytest.approx(3 * rows[0].days)
    assert days[rows[2].cfg] == pytest.approx((3 + 1.5) / 2 * rows[2].days)


def test_what_does_not_fit_comes_last_whatever_its_time():
    rows = planned().rows
    first = rows[0]._replace(fits=False)
    assert ranked([first, *rows[1:]], Wanted(1e12))[-1] is first


def test_a_price_that_is_not_known_is_an_error_only_if_cost_is_asked_for():
    pool = Pool(name="mine", hardware="gpu-gb200", count=64)
    with pytest.raises(ConfigError, match="mine: there is no price of gpu-gb200"):
        plan(recipe("llama2-7b"), [pool], Wanted(1e12, "cost"))
    with pytest.raises(ConfigError, match="--by energy: the power of tpu-v5p is not published"):
        plan(recipe("llama2-7b"), pools_on(["tpu-v5p-64"]), Wanted(1e12, "energy"))


def test_a_run_that_fits_nowhere_is_one_error_that_says_why():
    with pytest.raises(ConfigError, match=r"(?s)there is no plan.*tpu-v5e-8: nothing that divides"):
        plan(recipe("llama2-70b"), pools_on(["tpu-v5e-8"]), Wanted(1e12))


def test_spot_chips_that_are_taken_away_too_often_are_never_done():
    pool = Pool(name="a", hardware="gpu-h100", count=64, kind="spot", interruptions=1.0, exactly="gpu-h100-64")
    row = plan(recipe("llama2-7b"), [pool], Wanted(1e12)).rows[0]
    assert (row.goodput, row.days) == (0.0, math.inf)


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=3, max_size=9))
def test_rank_correlation_is_of_orders(pairs):
    found = rank_correlation(pairs)
    if found is None:
        assert len({a for a, _ in pairs}) == 1 or len({b for _, b in pairs}) == 1
    else:
        assert -1 <= found <= 1
        assert rank_correlation([(a**3, b) for a, b in pairs]) == found
        assert rank_correlation([(b, a) for a, b in pairs]) == pytest.approx(found)
        assert rank_correlation([(a, a) for a, _ in pairs]) in (None, 1.0)
