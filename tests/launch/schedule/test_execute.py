# SPDX-License-Identifier: Apache-2.0
"""Decisions that are carried out, by engines that are made up here: schedulers die, engines refuse, jobs linger."""

import dataclasses
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.launch import JobInfo, Record
from dovetail.launch.schedule import Cluster, Demand, Executor, Fleet, JobSpec, Pool, Settings, decide

POOLS = (Pool(name="fast", count=4), Pool(name="slow", count=6))
RATES = {"fast": {"2": 4.0, "4": 7.0}, "slow": {"2": 1.0}}
ENDED = ("done", "failed", "cancelled")
TOTAL = 100


class DeadError(Exception):
    """The scheduler was killed."""


class World(Fleet):
    """Engines: jobs run, save when they are asked to, and end. Whatever happens, no directory has two."""

    def __init__(self, root: Path, rng: random.Random, *, dies: float = 0.0, refuses: float = 0.0) -> None:
        self.root, self.rng, self.dies, self.refuses = root, rng, dies, refuses
        self.infos: dict[str, JobInfo] = {}
        self.places: dict[str, tuple[str, int]] = {}
        self.linger: dict[str, int] = {}
        self.now = 1000.0
        self.starts: list[tuple[str, tuple[str, int]]] = []

    def jobs(self):
        for job, left in list(self.linger.items()):
            self.linger[job] = left - 1
            if left <= 0:
                del self.linger[job]
                self.infos[job] = dataclasses.replace(self.infos[job], state="cancelled")
        return list(self.infos.values())

    def submit(self, spec, place):
        if self.rng.random() < self.refuses:
            raise ConfigError("not here")
        self._may_die()
        alive = [each for each in self.infos.values() if each.directory == spec.directory and each.state not in ENDED]
        assert not alive, "a second job in one directory"
        job = str(len(self.infos) + 1)
        self.infos[job] = JobInfo(job, spec.name, "running", directory=spec.directory)
        self.places[job] = place
        self.starts.append((spec.name, place))
        self._may_die()
        return self.infos[job]

    def cancel(self, info):
        self._may_die()
        if self.infos[info.id].state not in ENDED and info.id not in self.linger:
            self.infos[info.id] = dataclasses.replace(info, state="ending")
            self.linger[info.id] = self.rng.randrange(3)
        self._may_die()

    def _may_die(self) -> None:
        if self.rng.random() < self.dies:
            raise DeadError

    def passes(self, seconds: float) -> None:
        """Lets time go by: jobs make steps."""
        for job, info in self.infos.items():
            if info.state != "running":
                continue
            pool, chips = self.places[job]
            directory = Path(info.directory)
            directory.mkdir(parents=True, exist_ok=True)
            for _ in range(4):
                step = min(TOTAL, steps_in(directory) + max(1, int(RATES[pool][str(chips)] * seconds / 4)))
                self.now += seconds / 4 / max(1, len(self.infos))
                with (directory / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps({"time": self.now, "step": step}) + "\n")
            if steps_in(directory) >= TOTAL:
                self.infos[job] = dataclasses.replace(info, state="done")
        self.now += seconds

    def used(self, pool: str) -> int:
        return sum(
            self.places[job][1]
            for job, info in self.infos.items()
            if info.state == "running" and self.places[job][0] == pool
        )


def steps_in(directory: Path) -> int:
    file = directory / "metrics.jsonl"
    return json.loads(file.read_text().splitlines()[-1])["step"] if file.exists() else 0


def spec_of(root: Path, name: str, chips=(2,), **fields) -> JobSpec:
    return JobSpec(name=name, chips=chips, rates=RATES, directory=str(root / name), recipe="x", **fields)


def demand(spec: JobSpec) -> Demand:
    rates = {
        (pool, int(chips)): rate
        for pool, by_chips in spec.rates.items()
        for chips, rate in by_chips.items()
        if int(chips) in spec.chips
    }
    steps = spec.steps
    assert steps is not None
    return Demand(
        spec.name,
        rates,
        steps,
        gang=spec.gang,
        waited=spec.waited_seconds,
        ran=spec.ran_seconds,
        at=spec.at,
        priority=spec.priority,
    )


def a_round(world: World, executor: Executor, specs) -> dict[str, str]:
    """Does what `dovetail schedule --execute` does; returns how jobs were before."""
    seen = executor.look(specs)
    there = [each for each in seen if each.state in ("waits", "runs", "leaves")]
    jobs = [demand(executor.asked(each, TOTAL)) for each in there]
    executor.carry_out(decide(Cluster(POOLS), jobs, Settings(round=10.0, restart=1.0)), seen)
    return {each.spec.name: each.state for each in seen}


def new_executor(world: World) -> Executor:
    return Executor(world, world.root / "state", clock=lambda: world.now, patience=0.0)


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path, random.Random(1))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_schedulers_that_die_and_engines_that_refuse_lose_nothing_and_run_nothing_twice(seed, count):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name), rng, dies=0.15, refuses=0.1)
        specs = [spec_of(world.root, f"j{n}", rng.choice([(2,), (4,), (2, 4)])) for n in range(count)]
        executor, states = new_executor(world), dict[str, str]()
        for _ in range(200):
            try:
                states = a_round(world, executor, specs)
            except DeadError:
                executor = new_executor(world)  # Started again by somebody.
                continue
            assert world.used("fast") <= 4
            assert world.used("slow") <= 6
            if set(states.values()) == {"done"}:
                break
            world.passes(10.0)
        assert set(states.values()) == {"done"}, states
        assert all(steps_in(Path(spec.directory)) == TOTAL for spec in specs)


def test_a_job_moves_for_one_that_gains_more_and_takes_its_steps_along(world):
    executor = new_executor(world)
    long = spec_of(world.root, "long")
    a_round(world, executor, [long])
    world.passes(5.0)
    assert world.starts == [("long", ("fast", 2))]
    urgent = spec_of(world.root, "urgent", (4,), priority=20.0)
    for _ in range(4):
        a_round(world, executor, [long, urgent])
    assert world.starts[1:] == [("urgent", ("fast", 4)), ("long", ("slow", 2))]
    (seen,) = executor.look([long])
    assert (seen.state, seen.place, seen.step) == ("runs", ("slow", 2), 20)
    asked = executor.asked(seen, TOTAL)
    assert asked.steps == TOTAL - 20


def test_what_was_measured_replaces_what_was_believed_and_corrects_the_rest(world):
    executor, spec = new_executor(world), spec_of(world.root, "one")
    a_round(world, executor, [spec])
    directory = Path(spec.directory)
    directory.mkdir()
    lines = [{"time": 50.0 + n, "step": 3 * n} for n in range(1, 5)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (seen,) = executor.look([spec])
    assert executor.asked(seen, TOTAL).rates == {"fast": {"2": 3.0, "4": 7.0 * 3 / 4}, "slow": {"2": 3 / 4}}


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_what_failed_or_was_cancelled_by_its_user_is_left_until_it_is_resumed(world, state):
    executor, spec = new_executor(world), spec_of(world.root, "one")
    a_round(world, executor, [spec])
    world.infos["1"] = dataclasses.replace(world.infos["1"], state=state, detail="out of memory")
    assert a_round(world, executor, [spec]) == {"one": state}
    (seen,) = executor.look([spec])
    assert seen.detail == f"out of memory; `dovetail jobs resume {spec.directory}` lets it go on"
    assert len(world.infos) == 1
    world.infos["2"] = JobInfo("2", "one", "running", directory=spec.directory)
    assert a_round(world, executor, [spec]) == {"one": "runs"}


def test_a_run_that_somebody_else_started_is_left_alone(world):
    spec = spec_of(world.root, "one")
    world.infos["1"] = JobInfo("1", "by hand", "running", directory=spec.directory)
    executor = new_executor(world)
    assert a_round(world, executor, [spec]) == {"one": "foreign"}
    assert executor.look([spec])[0].detail == "it runs, and was not started from here: it is left alone"
    assert world.starts == []
    assert world.infos["1"].state == "running"


def test_a_launch_without_an_engine_that_may_still_run_elsewhere_is_left_alone(world):
    spec = spec_of(world.root, "one")
    Record(engine="local", id="another-host-17", name="one", directory=spec.directory).write()
    assert a_round(world, new_executor(world), [spec]) == {"one": "foreign"}
    assert world.starts == []


def test_of_a_gang_that_is_refused_in_part_nothing_stays(world, monkeypatch):
    specs = [spec_of(world.root, name, gang="g") for name in ("a", "b")]
    submit = world.submit

    def refusing(spec, place):
        if spec.name == "b":
            raise ConfigError("no such partition")
        return submit(spec, place)

    monkeypatch.setattr(world, "submit", refusing)
    executor = new_executor(world)
    a_round(world, executor, specs)
    assert world.infos["1"].state == "ending"
    assert not executor.may_have("b", ("fast", 2))


def test_a_job_that_still_saves_is_started_when_it_has_ended(world):
    executor, spec = new_executor(world), spec_of(world.root, "one")
    a_round(world, executor, [spec])
    world.passes(5.0)
    seen = executor.look([spec])
    urgent = spec_of(world.root, "urgent", (4,), priority=50.0)
    world.linger["1"] = 10**6  # It will not end soon.
    a_round(world, executor, [spec, urgent])
    assert [each for each, _ in world.starts].count("one") == 1
    assert seen[0].state == "runs"
    assert executor.look([spec])[0].state == "leaves"
    world.linger["1"] = 0
    a_round(world, executor, [spec])
    a_round(world, executor, [spec])
    assert [each for each, _ in world.starts].count("one") == 2
