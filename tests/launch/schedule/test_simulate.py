# SPDX-License-Identifier: Apache-2.0
"""The simulator: by hand on few jobs, and what holds for every policy on random ones."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.launch.schedule import POLICIES, Arrival, Cluster, Demand, Pool, Settings, ours, simulate, wrong

ONE = Cluster((Pool(name="a", count=4),))


def arrival(name, seconds, chips=4, steps=1000.0, rates=None):
    return Arrival(Demand(name, rates or {("a", chips): 1.0}, steps), seconds, name[0])


def crowd(seed, count=24):
    """Returns jobs of a few kinds on two pools."""
    rng = random.Random(seed)
    kinds = [{(pool, n): rng.uniform(1, 4) * n for pool in ("new", "old")} for n in (1, 1, 2, 4)]
    found = []
    for i in range(count):
        kind = rng.randrange(len(kinds))
        work = rng.lognormvariate(8.5, 1)
        found.append(Arrival(Demand(f"j{i:02}", kinds[kind], work), rng.uniform(0, 12_000), str(kind)))
    return found


CROWDED = Cluster((Pool(name="new", count=4, price=2.0), Pool(name="old", count=8, price=1.0)))


def test_two_jobs_one_after_the_other_by_hand():
    found = simulate(ONE, [arrival("x", 0.0), arrival("y", 100.0)], Settings(), POLICIES["fifo"]())
    assert found.ends == {"x": 1000.0, "y": 1080.0 + 1000.0}  # y starts at the round after x has ended.
    assert found.mean == pytest.approx((1000 + 1980) / 2)
    assert found.makespan == 2080
    assert found.restarts == 0
    assert found.utilisation == pytest.approx(2000 / 2080)
    assert found.waited == pytest.approx(980 / 2)


def test_a_restart_loses_time_and_is_counted():
    """A policy that stops its only job in every second round."""
    asked = iter(range(100))

    def policy(cluster, jobs, settings):
        return {} if next(asked) % 2 and jobs[0].name == "x" else {jobs[0].name: ("a", 4)}

    found = simulate(ONE, [arrival("x", 0.0), arrival("y", 5000.0, steps=1.0)], Settings(), policy)
    assert found.ends["x"] == 6 * 360 + 60 + (1000 - 360 - 300 - 300)
    assert found.restarts == 3 / 2
    later = simulate(ONE, [arrival("x", 0.0, steps=300.0)], Settings(), ours, first=True)
    assert later.ends == {"x": 360.0}


def test_a_deadline_comes_nearer_until_it_is_pressing():
    """The long job is worth less than short ones, until it would be late."""
    short = [arrival(f"s{i}", 700.0 * i, steps=700.0) for i in range(40)]
    long = arrival("x", 0.0, steps=7200.0)
    pressed = long._replace(job=long.job._replace(deadline=18_000.0))
    late = simulate(ONE, [long, *short], Settings(), ours).ends["x"]
    assert simulate(ONE, [pressed, *short], Settings(), ours).ends["x"] <= 18_000 < late


def test_what_is_seen_replaces_what_was_believed():
    """Believed to be fast on the wrong pool, the second job of the kind goes where it is fast."""
    cluster = Cluster((Pool(name="a", count=1), Pool(name="b", count=1)))
    true, believed = {("a", 1): 1.0, ("b", 1): 3.0}, {("a", 1): 3.5, ("b", 1): 3.0}
    jobs = [arrival("x", 0.0, rates=true, steps=6000.0)]
    wrongly = [each._replace(job=each.job._replace(rates=believed)) for each in jobs]
    learns = simulate(cluster, jobs, Settings(), ours, believed=wrongly)
    stays = simulate(cluster, jobs, Settings(), ours, believed=wrongly, learns=False)
    assert learns.ends["x"] == pytest.approx(360 + 60 + 5640 / 3)
    assert stays.ends["x"] == 6000


def test_wrong_rates_are_within_the_error_and_shared_by_a_kind():
    jobs = crowd(0)
    found = wrong(jobs, 0.3, seed=1)
    ratios = {}
    for before, after in zip(sorted(jobs, key=lambda each: each.seconds), found, strict=True):
        for at, rate in after.job.rates.items():
            ratios.setdefault((before.kind, at), set()).add(round(rate / before.job.rates[at], 9))
    assert all(len(each) == 1 and 0.7 <= min(each) <= 1.3 for each in ratios.values())
    assert found == wrong(jobs, 0.3, seed=1) != wrong(jobs, 0.3, seed=2)


@settings(max_examples=2)
@given(st.integers(0, 99))
def test_every_policy_ends_every_job_within_capacity(seed):
    jobs = crowd(seed)
    for make in [*POLICIES.values(), lambda: ours]:
        found = simulate(CROWDED, jobs, Settings(), make())
        assert found.ends.keys() == {each.job.name for each in jobs}
        assert all(part <= 1 for _, part, _ in found.line)
        assert all(found.ends[each.job.name] > each.seconds for each in jobs)


def test_ours_is_faster_than_simple_policies_and_the_same_twice():
    jobs = crowd(3, 40)
    means = {name: simulate(CROWDED, jobs, Settings(), make()).mean for name, make in POLICIES.items()}
    found = simulate(CROWDED, jobs, Settings(), ours)
    assert found.mean < min(means.values())
    assert simulate(CROWDED, jobs[::-1], Settings(), ours).ends == found.ends


@pytest.mark.parametrize("objective", ["jct", "throughput", "fair", "cost", "makespan"])
def test_nobody_starves_while_others_keep_arriving(objective):
    """A job that needs all chips, among small ones of more worth that come for ever: it runs after its patience."""
    cluster = Cluster((Pool(name="a", count=4, price=1.0),))
    small = [arrival(f"s{i:03}", 300.0 * i, chips=1, steps=1100.0) for i in range(64)]
    small = [each._replace(job=each.job._replace(priority=50.0)) for each in small]
    patient = Settings(objective, patience=3600.0)
    found = simulate(cluster, [arrival("large", 0.0, steps=3000.0), *small], patient, ours)
    assert found.ends["large"] < 3600 * 3
    assert len(found.ends) == 65
