# SPDX-License-Identifier: Apache-2.0
"""What every decision holds, whatever the jobs."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.launch.schedule import Cluster, Demand, Pool, Settings, Team, decide, placed_greedily
from support.clusters import packed, situations, used

OBJECTIVES = st.sampled_from(["jct", "throughput", "fair", "cost", "makespan"])
EXACT = st.sampled_from([300, 0])  # 0: by prices, as if there were too many jobs.
FEW = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])


def demand(name, chips, pool="a", rate=1.0, **fields):
    return Demand(name, {(pool, chips): rate}, fields.pop("remaining", 10_000.0), **fields)


def holds(cluster, jobs, decision):
    """Whether a decision keeps to pools, quotas, sizes and gangs."""
    uses, placed = used(decision, jobs, cluster.teams), decision.placed()
    for pool in cluster.pools:
        assert packed(pool, [each.taken for each in decision.placements if each.pool == pool.name])
        for team in cluster.teams:
            if team.quota is not None and team.borrow is not None:
                assert uses.get((team.name, pool.name), 0) <= team.quota.get(pool.name, 0) + team.borrow
    assert all(each.taken >= each.chips for each in decision.placements)
    assert all(placed[job.name] in job.rates for job in jobs if job.name in placed)
    for gang in {job.gang for job in jobs if job.gang}:
        assert len({job.name in placed for job in jobs if job.gang == gang}) == 1


@pytest.mark.long
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(situations(most=24), OBJECTIVES, EXACT, st.randoms(use_true_random=False))
def test_many_larger_clusters_hold_all_of_it(found, objective, exact, rng: random.Random):
    cluster, jobs = found
    decision = decide(cluster, jobs, Settings(objective, exact=exact))
    holds(cluster, jobs, decision)
    again = decide(cluster, rng.sample(jobs, len(jobs)), Settings(objective, exact=exact))
    assert again.to_json() == decision.to_json()
    patient, alone = Settings(objective, exact=exact, patience=1e9), Cluster(cluster.pools)
    free = [job._replace(team="") for job in jobs]
    assert decide(alone, free, patient).value >= placed_greedily(alone, free, patient) - 1e-9


@settings(FEW, max_examples=40)
@given(situations(), OBJECTIVES, EXACT)
def test_pools_are_never_over_capacity_quotas_hold_and_gangs_are_whole(found, objective, exact):
    cluster, jobs = found
    holds(cluster, jobs, decide(cluster, jobs, Settings(objective, exact=exact)))


@FEW
@given(situations(), OBJECTIVES, EXACT, st.randoms(use_true_random=False))
def test_the_order_of_jobs_pools_and_teams_changes_nothing(found, objective, exact, rng: random.Random):
    cluster, jobs = found
    once = decide(cluster, jobs, Settings(objective, exact=exact)).to_json()
    shuffled = [rng.sample(list(each), len(each)) for each in (cluster.pools, cluster.teams, jobs)]
    turned = [job._replace(rates=dict(reversed(job.rates.items()))) for job in shuffled[2]]
    again = decide(Cluster(tuple(shuffled[0]), tuple(shuffled[1])), turned, Settings(objective, exact=exact))
    assert json.dumps(again.to_json()) == json.dumps(once)


def test_a_gang_whose_only_room_is_too_dear_waits_and_does_not_count_for_the_densest_first_either():
    cluster = Cluster((Pool(name="a", count=2, price=5.0), Pool(name="b", count=4, block=4, price=1.0)))
    jobs = [
        demand("cheap", 2, "b", gang="g"),
        Demand("dear", {("a", 2): 0.5, ("b", 3): 0.5}, 100.0, gang="g"),  # On b the other one has no room.
    ]
    assert decide(cluster, jobs, Settings("cost")).placements == ()
    assert placed_greedily(cluster, jobs, Settings("cost")) == 0.0


@FEW
@given(situations(with_teams=False), OBJECTIVES, EXACT)
def test_a_decision_is_worth_at_least_what_the_densest_first_are(found, objective, exact):
    cluster, jobs = found
    patient = Settings(objective, exact=exact, patience=1e9)
    decision = decide(cluster, jobs, patient)
    assert decision.value >= placed_greedily(cluster, jobs, patient) - 1e-9
    assert decision.value <= decision.bound + 1e-6


@FEW
@given(situations(), OBJECTIVES, EXACT)
def test_who_has_waited_longest_beyond_patience_runs_if_it_could_alone(found, objective, exact):
    cluster, jobs = found
    jobs = [job._replace(gang="", waited=min(job.waited, 600.0)) for job in jobs]
    jobs[0] = jobs[0]._replace(waited=1e7)
    alone = decide(cluster, jobs[:1], Settings(objective, exact=exact)).placements
    together = decide(cluster, jobs, Settings(objective, exact=exact)).placed()
    assert (jobs[0].name in together) == bool(alone)


@FEW
@given(situations(), OBJECTIVES, EXACT)
def test_actions_turn_what_runs_into_what_is_placed(found, objective, exact):
    cluster, jobs = found
    decision = decide(cluster, jobs, Settings(objective, exact=exact))
    runs = {job.name: job.at for job in jobs if job.at is not None}
    for each in decision.actions:
        before = runs.pop(each.job, None)
        expected = {"start": before is None, "move": before not in (None, (each.pool, each.chips))}
        assert expected.get(each.action, before == (each.pool, each.chips))
        if each.action != "stop":
            runs[each.job] = each.pool, each.chips
    assert runs == decision.placed()


@FEW
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from([1, 2, 3])), max_size=12), OBJECTIVES, EXACT)
def test_a_team_that_asks_for_no_more_than_its_quota_gets_it_whatever_others_would_borrow(asked, objective, exact):
    teams = tuple(Team(name=name, quota={"a": 6}) for name in "xyz")
    jobs = [
        demand(f"j{i}", chips, team=team, priority=1 + 50.0 * (team == "x")) for i, (team, chips) in enumerate(asked)
    ]
    pool = Pool(name="a", count=18, price=1.0)
    placed = decide(Cluster((pool,), teams), jobs, Settings(objective, exact=exact)).placed()
    for team in "xyz":
        mine = [job for job in jobs if job.team == team]
        if sum(chips for job in mine for _, chips in job.rates) <= 6:
            assert all(job.name in placed for job in mine)


def test_idle_quota_is_lent_and_given_back_when_its_owner_asks():
    cluster = Cluster((Pool(name="a", count=8),), (Team(name="x", quota={"a": 4}), Team(name="y", quota={"a": 4})))
    lent = [demand(f"x{i}", 4, team="x", priority=9.0) for i in range(2)]
    assert len(decide(cluster, lent, Settings()).placements) == 2
    running = [job._replace(at=("a", 4)) for job in lent]
    decision = decide(cluster, [*running, demand("y", 4, team="y")], Settings())
    assert "y" in decision.placed()
    assert [each.action for each in decision.actions] == ["stop", "start", "keep"]


def test_a_team_without_quota_shares_that_of_its_parent():
    teams = (Team(name="top", quota={"a": 4}, borrow=0), Team(name="x", parent="top"), Team(name="y", parent="top"))
    jobs = [demand(f"{team}{i}", 2, team=team) for team in "xy" for i in range(3)]
    assert len(decide(Cluster((Pool(name="a", count=16),), teams), jobs, Settings()).placements) == 2


@pytest.mark.parametrize(
    "steps, faster, action",
    [(5e3, 1.1, "keep"), (5e3, 1.5, "move"), (2e5, 1.1, "move"), (2e5, 1.004, "keep")],
)
def test_a_job_moves_where_that_gains_more_than_it_costs(steps, faster, action):
    pools = (Pool(name="a", count=4), Pool(name="b", count=4))
    job = Demand("j", {("a", 4): 1.0, ("b", 4): faster}, steps, at=("a", 4))
    assert [each.action for each in decide(Cluster(pools), [job], Settings()).actions] == [action]


def test_jobs_go_where_they_are_comparatively_fast():
    pools = (Pool(name="new", count=8), Pool(name="old", count=8))
    jobs = [
        Demand("gains", {("new", 8): 4.0, ("old", 8): 1.0}, 1e5),
        Demand("same", {("new", 8): 4.4, ("old", 8): 4.0}, 1e5),
    ]
    placed = decide(Cluster(pools), jobs, Settings("throughput")).placed()
    assert placed == {"gains": ("new", 8), "same": ("old", 8)}
    why = {each.job: each.why for each in decide(Cluster(pools), jobs, Settings("throughput")).actions}
    assert why["gains"] == "where it is fastest"
    assert why["same"] == "91% of its speed on 8 of new, which are worth more to others"


def test_elastic_jobs_shrink_to_let_others_in():
    sizes = {("a", 8): 2.0, ("a", 4): 1.5}
    jobs = [Demand(f"j{i}", sizes, 1e5, at=("a", 8) if not i else None) for i in range(2)]
    placed = decide(Cluster((Pool(name="a", count=8),)), jobs, Settings()).placed()
    assert placed == {"j0": ("a", 4), "j1": ("a", 4)}


def test_spares_of_a_pool_stay_free_and_those_of_a_job_are_counted():
    pool = Pool(name="a", count=16, block=4, spares=1)
    decision = decide(Cluster((pool,)), [demand("j", 8, spares=4), demand("k", 4)], Settings())
    assert [each.taken for each in decision.placements] == [12]


def test_a_deadline_that_can_be_met_comes_first_and_one_that_cannot_does_not():
    cluster = Cluster((Pool(name="a", count=4),))
    jobs = [demand("j", 4), demand("k", 4, remaining=20_000.0, deadline=21_000.0)]
    assert list(decide(cluster, jobs, Settings()).placed()) == ["k"]
    late = [jobs[0], jobs[1]._replace(deadline=10_000.0)]
    assert list(decide(cluster, late, Settings()).placed()) == ["j"]


def test_by_cost_a_job_waits_for_cheap_chips_unless_it_has_a_deadline():
    pools = (Pool(name="cheap", count=4, price=1.0), Pool(name="dear", count=4, price=9.0))
    jobs = [Demand(f"j{i}", {("cheap", 4): 1.0, ("dear", 4): 1.5}, 1e4) for i in range(2)]
    assert decide(Cluster(pools), jobs, Settings("cost")).placed() == {"j0": ("cheap", 4)}
    pressed = [job._replace(deadline=11_000.0) for job in jobs]
    assert len(decide(Cluster(pools), pressed, Settings("cost")).placed()) == 2


def test_by_cost_every_pool_needs_a_price():
    with pytest.raises(ConfigError, match=r"a: no price is known.*\n.*Add price"):
        decide(Cluster((Pool(name="a", count=4),)), [demand("j", 4)], Settings("cost"))


def test_two_jobs_of_one_name_are_an_error():
    with pytest.raises(ConfigError, match=r"job 'j' is there twice"):
        decide(Cluster((Pool(name="a", count=4),)), [demand("j", 4), demand("j", 2)], Settings())


def test_prices_are_zero_where_chips_are_left_and_above_where_they_are_not():
    pools = (Pool(name="a", count=4), Pool(name="b", count=64))
    jobs = [demand(f"j{i}", 4) for i in range(3)] + [demand("k", 4, pool="b")]
    prices = decide(Cluster(pools), jobs, Settings("throughput")).prices
    assert prices["a"] > 0.01
    assert prices["b"] == pytest.approx(0)


def test_nothing_is_printed_by_the_solver(capfd):
    jobs = [demand(f"j{i:02}", 1 + i % 7, remaining=1e3 * i + 1) for i in range(40)]
    decide(Cluster((Pool(name="a", count=32, block=8),)), jobs, Settings())
    assert capfd.readouterr().out == ""
