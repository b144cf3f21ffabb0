# SPDX-License-Identifier: Apache-2.0
"""Why jobs wait, and what would start them: applied, it does."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.launch.schedule import Cluster, Demand, Pool, Settings, Team, changed, decide, explain
from support.clusters import situations


def demand(name, chips, rate=1.0, **fields):
    return Demand(name, {("a", chips): rate}, fields.pop("remaining", 10_000.0), **fields)


def why(cluster, jobs, name):
    return next(each for each in explain(decide(cluster, jobs, Settings())) if each.job == name)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(situations(most=5), st.sampled_from(["jct", "throughput", "makespan"]))
def test_a_checked_change_starts_its_job(found, objective):
    cluster, jobs = found
    decision = decide(cluster, jobs, Settings(objective))
    waiting = explain(decision)
    assert [each.job for each in waiting] == list(decision.waiting)
    for each in waiting:
        for change in each.changes:
            if change.checked:
                placed = decide(*changed(cluster, jobs, each.job, change), Settings(objective)).placed()
                assert each.job in placed
                assert not set(change.stops) & set(placed)
        assert len({change.checked for change in each.changes}) <= 1


def test_the_cheapest_change_comes_first():
    cluster = Cluster((Pool(name="a", count=8, price=3.0),))
    jobs = [demand("first", 8, remaining=1000.0), demand("second", 8, remaining=9000.0)]
    found = why(cluster, jobs, "second")
    costs = [change.dollars_per_hour for change in found.changes]
    assert costs == sorted(costs)
    assert {change.kind for change in found.changes} == {"priority", "chips"}
    chips = next(change for change in found.changes if change.kind == "chips")
    assert (chips.chips, chips.dollars_per_hour) == (8, 24.0)
    assert next(change.stops for change in found.changes if change.kind == "priority") == ("first",)


def test_a_job_waits_for_who_holds_the_chips_and_until_when():
    found = why(Cluster((Pool(name="a", count=8),)), [demand("first", 8, remaining=7140.0), demand("b", 8)], "b")
    assert found.reason.startswith("a is held by 1 job that are worth more until about 2.0 h from now")
    assert found.until == 7200


def test_a_quota_that_is_full_is_named_and_what_would_have_to_be_added():
    teams = (Team(name="x", quota={"a": 4}, borrow=2),)
    jobs = [demand("j1", 4, team="x"), demand("j2", 4, team="x")]
    found = why(Cluster((Pool(name="a", count=16),), teams), jobs, "j2")
    assert found.reason == (
        "team x has 4 chips of a, and 4 more are over what it may have: 4 of a are its quota, and it may borrow 2"
    )
    assert found.changes[0].text == "raise the quota of team x in a by 2 chips, which are free"


def test_a_quota_that_is_lent_is_named_with_who_has_it():
    teams = (Team(name="x", quota={"a": 8}), Team(name="y", quota={"a": 0}))
    jobs = [
        demand("borrower", 6, team="y", waited=1e7, at=("a", 6)),  # It has waited for so long that it has to run.
        demand("owner", 8, team="x"),
    ]
    found = why(Cluster((Pool(name="a", count=8),), teams), jobs, "owner")
    assert found.reason.startswith("a quota of team x is lent to borrower until about 2.8 h from now")


def test_a_smaller_size_that_is_free_costs_nothing():
    jobs = [demand("first", 6, remaining=1000.0), demand("second", 4, remaining=9000.0)]
    found = why(Cluster((Pool(name="a", count=8, price=1.0),)), jobs, "second")
    assert found.changes[0].text == "let it run on 2 chips of a, which are free"


def test_a_gang_that_does_not_fit_is_named():
    jobs = [demand("g1", 4, gang="g"), demand("g2", 6, gang="g")]
    found = why(Cluster((Pool(name="a", count=8),)), jobs, "g1")
    assert found.reason == "its gang g runs together or not at all, and not all of it fits"


def test_a_job_that_no_pool_holds_says_so():
    found = why(Cluster((Pool(name="a", count=8),)), [demand("j", 16)], "j")
    assert found.reason == "no pool has chips for it"


def test_of_very_many_jobs_the_priority_is_guessed_from_prices():
    jobs = [demand(f"j{i}", 4, remaining=1000.0 * (i + 1)) for i in range(4)]
    decision = decide(Cluster((Pool(name="a", count=4, price=1.0),)), jobs, Settings(exact=0))
    changes = {each.job: each.changes for each in explain(decision)}["j3"]
    assert [change.checked for change in changes] == [False] * len(changes)
    assert any(change.kind == "priority" for change in changes)
