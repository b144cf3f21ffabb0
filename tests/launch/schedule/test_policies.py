# SPDX-License-Identifier: Apache-2.0
"""Simple policies, by what they are known for."""

from dovetail.launch.schedule import POLICIES, Cluster, Demand, Pool, Settings

POOLS = Cluster((Pool(name="new", count=4), Pool(name="old", count=8)))


def place(name, jobs):
    return POLICIES[name]()(POOLS, jobs, Settings())


def job(name, chips=4, **fields):
    return Demand(name, {("new", chips): 4.0, ("old", chips): 1.0}, 1e5, **fields)


def test_first_come_first_served_looks_at_no_speed_and_lets_nobody_pass():
    only_new = Demand("b", {("new", 4): 1.0}, 1e5, at=None)
    running = job("a", at=("new", 4))
    assert place("fifo", [job("x")]) == {"x": ("old", 4)}
    assert place("fifo", [running, only_new, job("c", 1)]) == {"a": ("new", 4)}


def test_the_best_free_pool_is_taken_and_kept():
    assert place("best free pool", [job("x"), job("y")]) == {"x": ("new", 4), "y": ("old", 4)}
    later = [job("x", at=("old", 4))]
    assert place("best free pool", later) == {"x": ("old", 4)}
    assert place("best free pool, moves", later) == {"x": ("new", 4)}


def test_who_has_had_least_comes_first():
    assert place("least attained", [job("x", ran=900.0), job("y", ran=30.0)])["y"] == ("new", 4)


def test_equal_jobs_take_turns_by_max_min_shares():
    policy, had = POLICIES["max-min shares"](), {"x": 0, "y": 0}
    for _ in range(10):
        placed = policy(POOLS, [job("x"), job("y")], Settings())
        for name in placed:
            had[name] += placed[name][0] == "new"
    assert had == {"x": 5, "y": 5}
