# SPDX-License-Identifier: Apache-2.0
"""The integer program, against all placements there are; its prices, by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.launch.schedule import Cluster, Demand, Pool, Settings, Team, decide
from dovetail.launch.schedule._demand import options_of
from dovetail.launch.schedule._model import model_of, relaxed
from dovetail.launch.schedule._objective import values
from support.clusters import packed, situations


def best_of_all(cluster, jobs, wanted):
    """Returns the value of the best placement, by trying all."""
    options = options_of(cluster, jobs, wanted)
    worth = values(cluster, jobs, options, wanted)
    ways = [[None, *np.flatnonzero(options.job == j).tolist()] for j in range(len(jobs))]
    most = 0.0
    for placement in itertools.product(*ways):
        taken = [option for option in placement if option is not None]
        by_pool = [[int(options.taken[o]) for o in taken if options.pool[o] == p] for p in range(len(cluster.pools))]
        if all(packed(pool, each) for pool, each in zip(cluster.pools, by_pool, strict=True)):
            most = max(most, float(worth[taken].sum()) if taken else 0.0)
    return most


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(situations(with_teams=False, most=4), st.sampled_from(["jct", "throughput", "fair"]))
def test_the_best_placement_is_found(found, objective):
    cluster, jobs = found
    jobs = [job._replace(gang="") for job in jobs]
    wanted = Settings(objective, patience=1e9)
    most = best_of_all(cluster, jobs, wanted)
    assert decide(cluster, jobs, wanted).value == pytest.approx(most, rel=2e-3)


def test_prices_are_what_one_more_is_worth():
    """Four jobs of one chip and of worth 1, 2, 3 and 4 on two chips: a third would add 2."""
    cluster = Cluster((Pool(name="a", count=2),))
    jobs = [Demand(f"j{i}", {("a", 1): 1.0}, 1e4) for i in range(4)]
    model = model_of(cluster, jobs, options_of(cluster, jobs, Settings()))
    share, prices = relaxed(model, np.array([1.0, 2.0, 3.0, 4.0]))
    assert share == pytest.approx([0, 0, 1, 1])
    assert 2 <= prices.chips[0] <= 3


def test_a_quota_that_binds_has_a_price_and_chips_that_are_left_have_none():
    cluster = Cluster((Pool(name="a", count=8),), (Team(name="x", quota={"a": 1}, borrow=0),))
    jobs = [Demand(f"j{i}", {("a", 1): 1.0}, 1e4, team="x") for i in range(3)]
    model = model_of(cluster, jobs, options_of(cluster, jobs, Settings()))
    _, prices = relaxed(model, np.ones(3))
    assert prices.chips[0] == pytest.approx(0)
    assert prices.limits[0] == pytest.approx(1)
