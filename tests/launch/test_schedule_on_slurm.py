# SPDX-License-Identifier: Apache-2.0
"""`dovetail schedule --execute` on a real Slurm: jobs move between two pools of different speed, and lose nothing."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos_check import difference, orphans
from support import slurm
from support.slurm_run import RECIPE, SRC, here

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())]
STEPS = {"first": 360, "second": 60}

POOLS = """
[fast]
count = 2
via = "slurm"
launch = ['constraint="h100"', {engine}]

[slow]
count = 2
via = "slurm"
launch = ['constraint="a100"', 'setup=["export CHAOS_STEP_SECONDS=0.05"]', {engine}]
"""
JOB = """
[jobs.{name}]
recipe = "{recipe}"
overrides = ["steps={steps}", "input.control={root}/{name}", "log_every=5"]
directory = "{root}/{name}/run"
chips = 2
priority = {priority}
rates = {rates}
"""


class Scheduler:
    """A scheduler as a process, which prints a line of JSON for each round."""

    def __init__(self, root: Path, cluster: slurm.Slurm) -> None:
        self._root, self._out = root, root / "out"
        command = [sys.executable, "-m", "dovetail.cli", "schedule", "jobs.toml", "pools.toml", "--execute"]
        command += ["--round", "2s", "--restart", "1s", "--json"]
        self._env = {**here(), "SLURM_CONF": str(cluster.conf), "PYTHONPATH": str(SRC)}
        self._command = command
        self.start()

    def start(self) -> None:
        with self._out.open("ab") as out:
            self.process = subprocess.Popen(self._command, cwd=self._root, stdout=out, stderr=out, env=self._env)

    def rounds(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for line in self._out.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def places(self, job: str) -> list[str]:
        """Returns the pools in which a job was started, in order."""
        did = [each for one in self.rounds() for each in one["did"]]
        return [each["place"][0] for each in did if each["job"] == job and each["what"] == "started"]


@pytest.fixture
def cluster(tmp_path) -> Iterator[slurm.Slurm]:
    with slurm.slurm(tmp_path / "c") as running:
        yield running


def unbroken(root: Path, name: str, cache: Path) -> str:
    """Returns the checkpoints of the same run that is left alone."""
    (root / "alone" / name).mkdir(parents=True)
    command = [sys.executable, "-m", "dovetail.cli", "launch", RECIPE, "--processes", "2", f"steps={STEPS[name]}"]
    command += [f"directory={root}/alone/{name}/run", f"input.control={root}/alone/{name}", "log_every=5"]
    env = {**here(), "PYTHONPATH": str(SRC), "XDG_CACHE_HOME": str(cache)}
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=300)
    return f"{root}/alone/{name}/run/checkpoints"


def test_jobs_move_between_two_pools_and_lose_nothing(cluster, tmp_path, monkeypatch):
    cache = cluster.directory / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    wanted = unbroken(tmp_path, "first", cache)
    names = ["HOME", "PATH", "XDG_CACHE_HOME", *(n for n in here() if n.startswith(("JAX_", "XLA_", "PJRT_")))]
    engine = f"'python=\"{sys.executable}\"', 'export={json.dumps(names)}', 'gres=\"\"'"
    (tmp_path / "pools.toml").write_text(POOLS.format(engine=engine))
    jobs = {}
    for name, priority, slow in (("first", 1, 4.0), ("second", 50, 0.1)):
        (tmp_path / name).mkdir()
        rates = f"{{ fast = {{ 2 = 5.0 }}, slow = {{ 2 = {slow} }} }}"
        about = {"steps": STEPS[name], "root": tmp_path, "rates": rates, "priority": priority}
        jobs[name] = JOB.format(name=name, recipe=RECIPE, **about)
    (tmp_path / "jobs.toml").write_text(jobs["first"])
    scheduler = Scheduler(tmp_path, cluster)
    try:
        cluster.until(lambda: _step(tmp_path, "first") >= 40, f"steps: {scheduler.rounds()[-1:]}", 120)
        assert scheduler.places("first") == ["fast"]
        (tmp_path / "jobs.toml").write_text("".join(jobs.values()))  # A job arrives.
        scheduler.process.kill()  # And the scheduler dies.
        scheduler.process.wait()
        scheduler.start()
        cluster.until(lambda: scheduler.process.poll() is not None, "the end", 400)
        assert scheduler.process.returncode == 0, scheduler.rounds()[-1]
    finally:
        scheduler.process.kill()
        scheduler.process.wait()
    assert scheduler.places("first")[:2] == ["fast", "slow"]  # It made room.
    assert scheduler.places("second") == ["fast"]
    measured = [each["jobs"]["first"]["rate"] for each in scheduler.rounds() if "second" in each["jobs"]]
    assert any(rate is not None and rate < 20 for rate in measured)  # As the slow pool is: at least 0.05 s a step.
    for name in STEPS:
        assert _step(tmp_path, name) == STEPS[name]
        assert orphans(tmp_path / name / "run") == []
    assert difference(f"{tmp_path}/first/run/checkpoints", wanted) == []


def _step(root: Path, name: str) -> int:
    file = root / name / "run" / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)
