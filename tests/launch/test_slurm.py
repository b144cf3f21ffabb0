# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch --via slurm` on a real Slurm of four nodes: jobs are preempted, nodes die, users cancel."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from chaos_check import difference, orphans
from support import slurm
from support.slurm_run import RECIPE, SRC, SlurmRun, environment_of, here

STEPS = 300

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[slurm.Slurm]:
    with slurm.slurm(tmp_path_factory.mktemp("slurm") / "c") as running:
        yield running


@pytest.fixture(scope="module")
def unbroken(cluster, tmp_path_factory) -> Iterator[str]:
    """The checkpoints of the same run of two processes, which goes on beside the tests and is left alone."""
    directory = tmp_path_factory.mktemp("unbroken")
    (directory / "control").mkdir()
    command = [sys.executable, "-m", "dovetail.cli", "launch", RECIPE, "--processes", "2", f"steps={STEPS}"]
    command += [f"directory={directory / 'run'}", f"input.control={directory / 'control'}"]
    env = {**here(), "PYTHONPATH": str(SRC), "XDG_CACHE_HOME": str(cluster.directory / "cache")}
    with (directory / "out").open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as process:
        try:
            assert process.wait(300) == 0, (directory / "out").read_text()
            yield str(directory / "run" / "checkpoints")
        finally:
            process.terminate()


@pytest.fixture
def run(cluster, tmp_path) -> Iterator[SlurmRun]:
    found = SlurmRun(cluster, tmp_path)
    yield found
    if found.job:
        cluster.run("scancel", found.job, check=False)
        cluster.until(lambda: not cluster.run("squeue", "-h", "-t", "R,CG").stdout.strip(), "nodes that are free")
    for node in slurm.NODES:
        if node not in cluster.idle():
            cluster.start_node(node)
    cluster.until(lambda: len(cluster.idle()) == len(slurm.NODES), "nodes")


def test_preempted_and_then_without_a_node_a_job_ends_with_the_bits_of_the_unbroken_run(unbroken, run):
    run.launch("--processes", "2", steps=STEPS)
    run.until_step(30)
    run.take_nodes(1)
    assert run.until(1, "over")["code"] == 85
    run.until(2, "moving")
    run.until_step(run.step() + 20)
    run.cluster.kill_node(run.node_of(1))
    run.until(3, "launched")
    shown = run.until_over()
    assert (shown["state"], shown["restarts"]) == ("done", 2), run.log()
    assert difference(run.checkpoints, unbroken) == []
    assert orphans(run.run) == []


def test_a_spare_takes_the_place_of_a_lost_node_and_a_cancelled_job_saves_stays_away_and_is_resumed(unbroken, run):
    run.launch("--processes", "2", "--spares", "1", steps=STEPS)
    run.until_step(30)
    run.cluster.kill_node(run.node_of(int(run.events("start")[0]["slots"][1])))
    moved = run.until(2, "moving")
    (failed,) = run.events("failed")
    assert (failed["what"], len(run.events("launched"))) == ("lost", 1)  # Within the job.
    assert moved["clock"] - failed["detected"] < 60
    first = run.job
    run.cli("jobs", "cancel", first)
    shown = run.until_over()
    assert shown["state"] == "cancelled", run.log()
    assert run.events("over")[-1]["code"] == 85  # It has saved.
    # Whatever Slurm does with it, it does not go on.
    assert run.cli("jobs", "resume", str(run.run)).stdout.split()[0] != first
    run.job = json.loads(run.cli("jobs", "list", str(run.run), "--json").stdout)[-1]["id"]
    shown = run.until_over()
    assert shown["state"] == "done", run.log()
    assert difference(run.checkpoints, unbroken) == []


def test_what_slurm_refuses_is_one_message_and_nothing_is_submitted(run):
    before = run.cluster.run("squeue", "-h", "-t", "all", "-o", "%i %T").stdout.splitlines()
    for options, said in (
        (["launch.partition=nowhere"], "invalid partition specified"),
        (["--processes", "9"], "would never start|configuration is not available"),
        (['launch.options=["--dependency=sideways:1"]'], "dependency"),
    ):
        for also in ([], ["--check"]) if said != "dependency" else ([],):
            done = run.cli(*run.arguments(*options, *also, steps=10), check=False)
            assert done.returncode == 2, done.stderr
            assert re.search(said, done.stderr, re.IGNORECASE), done.stderr
            assert "Traceback" not in done.stderr
    assert run.cluster.run("squeue", "-h", "-t", "PD,R,CG", "-o", "%i").stdout == ""
    shown = run.cluster.run("squeue", "-h", "-t", "all", "-o", "%i %T").stdout.splitlines()
    assert all(line in before or line.endswith("CANCELLED") for line in shown)


def test_the_same_job_is_submitted_once_and_one_that_differs_not_at_all(run):
    first = run.launch("--processes", "4", "launch.name=mine", 'launch.options=["--hold"]', steps=10)
    assert run.launch("--processes", "4", "launch.name=mine", 'launch.options=["--hold"]', steps=10) == first
    other = run.cli(*run.arguments("--processes", "4", 'launch.options=["--hold"]', steps=20), check=False)
    assert other.returncode == 2
    assert f"job {first} (mine) is waiting in {run.run}" in other.stderr
    listed = json.loads(run.cli("jobs", "--json").stdout)
    assert [(each["id"], each["state"]) for each in listed if each["name"] == "mine"] == [(first, "waiting")]
    run.cli("jobs", "cancel", "mine")
    assert json.loads(run.cli("jobs", "show", first, "--json").stdout)["state"] == "cancelled"
    # One that comes back after it was cancelled ends at once: nothing of it runs.
    run.cluster.run("scontrol", "requeue", first)
    run.cluster.run("scontrol", "release", first)
    assert run.until_over()["state"] == "cancelled"
    assert f"launch: job {first} was cancelled\n" in run.log()
    assert run.events("launched") == []


def test_a_controller_that_is_away_for_a_while_is_waited_for_and_one_that_stays_away_is_an_error(run):
    run.cluster.kill_controller()
    done = run.cli(*run.arguments("launch.patience=2", steps=10), check=False)
    assert done.returncode == 2
    assert "Its controller was tried for 2 s" in done.stderr
    assert "Traceback" not in done.stderr
    command = [sys.executable, "-m", "dovetail.cli", *run.arguments('launch.options=["--hold"]', steps=10)]
    env = {**here(), "SLURM_CONF": str(run.cluster.conf), "PYTHONPATH": str(SRC)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) as waiting:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(4)
        finally:
            run.cluster.start_controller()
        out, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    run.job = out.split()[0]
    found = run.cluster.run("squeue", "-h", "-o", "%i %k").stdout.splitlines()  # A cancelled one may be back, too.
    assert [line.split()[0] for line in found if line.endswith(f" {run.run}")] == [run.job]  # Once.


def test_a_job_that_comes_to_its_time_limit_saves_before_it_and_goes_on_in_the_next_start(unbroken, run):
    slow = 'launch.setup=["export CHAOS_STEP_SECONDS=0.08"]'  # 24 s for all steps, and 15 s, about, for each start.
    run.launch("--processes", "2", "launch.time=1", "launch.margin=45", slow, steps=STEPS)
    assert run.until(1, "over")["code"] == 85  # Nobody else has asked it to.
    shown = run.until_over(seconds=240)
    assert shown["state"] == "done", run.log()
    assert shown["restarts"] == len(run.events("launched")) - 1 >= 1
    assert "DUE TO TIME LIMIT" not in run.log()
    assert difference(run.checkpoints, unbroken) == []


def test_with_a_process_for_each_chip_the_processes_of_a_host_have_one_each(unbroken, run):
    options = ["--on", "cpu-2", "--mesh", "data=2", "launch.per_host=chips", "launch.gres=gpu:h100:2"]
    run.launch(*options, steps=STEPS)
    (start,) = run.until(1, "moving") and run.events("start")
    assert (start["processes"], start["slots"]) == (2, ["0", "1"])
    chips: set[tuple[str, str, str]] = set()
    for pid, _ in orphans(run.run):
        names = environment_of(pid)
        if "JAX_LOCAL_DEVICE_IDS" in names:  # A process that trains, or that these are forked from.
            shared = names.get("SLURM_PROCID", "not told")
            chips.add((names["SLURMD_NODENAME"], names["JAX_LOCAL_DEVICE_IDS"], shared))
    assert chips == {("n1", "0", "not told"), ("n1", "1", "not told")}
    assert run.until_over()["state"] == "done", run.log()
    assert difference(run.checkpoints, unbroken) == []


def test_a_job_of_two_kinds_of_hosts_trains_on_both(run):
    options = ["--processes", "3", "launch.constraint=[h100*2&a100*1]", "launch.gres=gpu:2"]
    options += ["input.batch_size=6", "input.inner.batch_size=6"]
    assert run.cli(*run.arguments(*options, "--check", steps=10)).stdout.startswith("Job ")
    run.launch(*options, steps=10)
    run.until(1, "start")
    nodes = [run.node_of(slot) for slot in range(3)]
    assert nodes[:2] == ["n1", "n2"]
    assert nodes[2] in ("n3", "n4")
    assert run.until_over()["state"] == "done", run.log()
    assert run.events("start")[0]["slots"] == ["0", "1", "2"]
