# SPDX-License-Identifier: Apache-2.0
"""The plan of all that is left."""

import numpy as np
import pytest

from dovetail.launch.schedule import Arrival, Cluster, Demand, Pool, Settings, ours, simulate
from dovetail.launch.schedule._demand import options_of
from dovetail.launch.schedule._makespan import planned

POOLS = Cluster((Pool(name="new", count=2), Pool(name="old", count=2)))


def end(jobs):
    options = options_of(POOLS, jobs, Settings(restart=0.0))
    hours, used = planned(POOLS, jobs, options)
    assert np.all(used >= 0)
    return hours


def test_the_earliest_end_by_hand():
    one = Demand("one", {("new", 1): 1.0}, 7200.0)
    assert end([one]) == pytest.approx(2.0)  # It cannot be split.
    assert end([one._replace(name=f"j{i}") for i in range(4)]) == pytest.approx(4.0)
    both = Demand("both", {("new", 2): 1.0, ("old", 2): 1.0}, 7200.0)
    assert end([both._replace(name=f"j{i}") for i in range(3)]) == pytest.approx(3.0)  # The third in two parts.


def test_by_makespan_all_is_done_earlier_and_close_to_the_plan():
    jobs = [
        Arrival(Demand(f"j{i}", {("new", 1): 2.0, ("old", 1): 1.0 + i % 2 / 2}, 3600.0 * (1 + i % 5)), 0.0, f"{i}")
        for i in range(14)
    ]
    least = end([each.job for each in jobs])
    found = {name: simulate(POOLS, jobs, Settings(name), ours) for name in ("jct", "makespan")}
    assert found["makespan"].makespan < found["jct"].makespan
    assert found["makespan"].makespan / 3600 < 1.1 * least
    assert found["jct"].mean < found["makespan"].mean
