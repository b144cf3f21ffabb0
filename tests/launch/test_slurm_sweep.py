# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch --via slurm --sweep` on a real Slurm: an array that runs, is cancelled as a whole, and goes on."""

import json
from collections.abc import Iterator

import pytest

from chaos_check import orphans
from dovetail.launch import exit_code_in
from support import slurm
from support.slurm_run import SlurmRun

SWEEP = ["--sweep", "learner.schedule.peak=1e-4,3e-2", "--seeds", "2"]
SLOW = 'launch.setup=["export CHAOS_STEP_SECONDS=1.5"]'  # So that it goes on while it is looked at.
NAMES = ["peak=1e-4,seed=0", "peak=1e-4,seed=1", "peak=3e-2,seed=0", "peak=3e-2,seed=1"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
]


@pytest.fixture
def run(tmp_path) -> Iterator[SlurmRun]:
    with slurm.slurm(tmp_path / "c") as running:
        yield SlurmRun(running, tmp_path)


def test_a_sweep_is_one_array_that_is_cancelled_as_a_whole_and_goes_on_with_what_is_missing(run):
    runs = run.run / "sweep"
    # Two at a time, on hosts with room for two processes that compile.
    first = run.launch(*SWEEP, "--at-once", "2", SLOW, steps=12)
    run.cluster.until(lambda: exit_code_in(runs / NAMES[0]) == 0, f"a run: {run.log()}", 180)
    listed = {each["directory"]: each for each in _jobs(run) if each["id"].startswith(f"{first}_")}
    assert sorted(listed) == [str(runs / name) for name in NAMES]
    assert listed[str(runs / NAMES[3])]["state"] in ("waiting", "running")
    # What goes on is not submitted again, and an array that is there gets no further runs.
    assert run.launch(*SWEEP, "--at-once", "2", SLOW, steps=12) == first
    further = ["--sweep", "learner.schedule.peak=1e-4,1e-3,3e-2", "--seeds", "2"]
    refused = run.cli(*run.arguments(*further, SLOW, steps=12), check=False)
    assert refused.returncode == 2
    assert f"job {first} (chaos-run-run-" in refused.stderr
    assert "goes on in" in refused.stderr
    assert "without peak=1e-3,seed=0, peak=1e-3,seed=1." in refused.stderr
    run.cli("jobs", "cancel", first)
    run.until_gone(first)
    states = {each["directory"]: each["state"] for each in _jobs(run)}
    over = [name for name in NAMES if exit_code_in(runs / name) == 0]
    assert 0 < len(over) < 4
    assert all(states[str(runs / name)] == ("done" if name in over else "cancelled") for name in NAMES)
    kept = {name: (runs / name / "launch" / "events.jsonl").read_bytes() for name in over}
    # The same command goes on with what is missing, and with nothing else.
    shown = run.cli(*run.arguments(*SWEEP, "--follow", steps=12), seconds=300).stdout
    assert shown.split()[0] != first
    assert f"--array=0-{3 - len(over)}" in json.loads((run.run / "launch" / "job.json").read_text())["files"]["job.sh"]
    assert {name: (runs / name / "launch" / "events.jsonl").read_bytes() for name in over} == kept
    assert "best loss: 5." in shown
    assert shown.splitlines()[-2].strip() == "learner.schedule.peak=3e-2"
    assert [exit_code_in(runs / name) for name in NAMES] == [0, 0, 0, 0]
    assert run.cli(*run.arguments(*SWEEP, steps=12)).stdout.splitlines()[-4:] == shown.splitlines()[-4:]
    assert orphans(run.run) == []


def _jobs(run: SlurmRun) -> list[dict[str, str]]:
    return json.loads(run.cli("jobs", "list", "--json", "--under", str(run.directory)).stdout)
