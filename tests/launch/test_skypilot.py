# SPDX-License-Identifier: Apache-2.0
"""`SkyPilot`: tasks with alternatives in the order of their prices, and what `sky` is asked. SkyPilot reads the tasks.

`sky` is a small program that writes down how it was called. Nothing is ever launched: that edits files of the user.
"""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from dovetail.config import ConfigError
from dovetail.hardware import CHIPS, hardware
from dovetail.launch import Job, JobInfo, Record
from dovetail.launch._host import Work
from golden_launch import BUNDLE, DIRECTORY, job_on, skypilot
from support.fake_command import Program

ROOT = Path(__file__).resolve().parents[2]
SKY = Path(os.environ.get("DOVETAIL_SKYPILOT", ROOT / ".venv" / "skypilot" / "bin" / "python"))
OFFERED = [chip for chip in CHIPS.values() if chip.skypilot is not None]
NAME = f"dovetail-llama2-7b-{BUNDLE.hash[:8]}"


def task(on, **fields):
    return yaml.safe_load(skypilot(**fields).render(job_on(on))["task.yaml"])


def test_alternatives_are_in_the_order_of_their_prices_spot_first():
    names = ["gpu-h200-16", "gpu-a100-16", "gpu-b200-16"]
    ways = task("gpu-h100-16", alternatives=names)["resources"]["ordered"]
    prices = {"A100-80GB:8": 3.43, "H100:8": 6.88, "H200:8": 7.91, "B200:8": 14.24}
    assert [each["accelerators"] for each in ways] == [*sorted(prices, key=lambda each: prices[each])] * 2
    assert [each["use_spot"] for each in ways] == [True] * 4 + [False] * 4


def test_where_order_does_not_matter_skypilot_chooses():
    resources = task("gpu-h100-16", ordered=False, spot="never", infra=["aws", "gcp/us-central1"])["resources"]
    ways = [{"accelerators": "H100:8", "use_spot": False, "infra": infra} for infra in ("aws", "gcp/us-central1")]
    assert resources["any_of"] == ways
    assert "ordered" not in resources


def test_what_was_asked_to_end_and_what_has_a_bad_host_is_started_again_and_nothing_else():
    recovery = {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 0, "recover_on_exit_codes": [85, 86]}
    assert task("gpu-h100-8")["resources"]["job_recovery"] == recovery


@pytest.mark.parametrize("chip", OFFERED, ids=lambda chip: chip.name)
def test_each_host_has_all_of_its_chips_and_runs_one_agent(chip):
    small = hardware(f"{chip.name}-{8 * chip.unit if chip.torus else chip.host}")
    found = task(small.name, spares=0 if chip.torus else 2)
    assert found["num_nodes"] == (1 if chip.torus else small.num_hosts + 2)
    (first, *_) = found["resources"]["ordered"]
    number = small.num_chips * chip.unit if chip.torus else chip.host
    assert re.search(rf"\D{number}\b", first["accelerators"])
    words = shlex.split(found["run"], comments=True)
    work = Work.of(words[words.index("host") + 1])
    assert (work.processes, work.arguments[:2]) == (small.num_hosts, ("train", "llama2-7b"))
    assert words[words.index("host") + 2] == "/runs/a"
    assert "DOVETAIL_SLOT=$SKYPILOT_NODE_RANK" in words


def test_the_directory_of_the_run_is_in_the_bucket():
    found = task("gpu-h100-8", bucket="gs://team", mount="/runs")
    assert found["file_mounts"]["/runs"] == {"source": "gs://team", "mode": "MOUNT_CACHED"}
    assert found["file_mounts"]["~/dovetail/bundle.tar.gz"] == f"./{BUNDLE.hash}.tar.gz"


@pytest.mark.parametrize(
    "fields, on, said",
    [
        ({}, "tpu-v7x-8", "not known what SkyPilot calls tpu-v7x"),
        ({}, "tpu-v5e-8x2", "is 2 slices, and SkyPilot does not join slices"),
        ({"spares": 1}, "tpu-v5e-16", r"launch\.spares is 1, and the hosts of a slice come together"),
        (
            {"alternatives": ["gpu-h200-8"]},
            "gpu-h100-16",
            "gpu-h200-8 has 1 hosts and 8 devices, and gpu-h100-16 has 2",
        ),
        ({"alternatives": ["gpu-h2-8"]}, "gpu-h100-8", "there is no chip 'gpu-h2'"),
        ({"bucket": ""}, "gpu-h100-8", r"launch\.bucket is '', expected s3://NAME or gs://NAME"),
        ({"mount": "/data"}, "gpu-h100-8", "hosts share only what is below '/data', which is s3://my-runs"),
        ({"processes": 5}, "gpu-h100-8", r"launch\.processes is 5"),
        ({"min_processes": 5}, "gpu-h100-8", r"launch\.min_processes is 5, expected 1 to 1"),
        ({"name": "A"}, "gpu-h100-8", r"launch\.name is 'A'"),
    ],
)
def test_what_cannot_be_is_one_clear_error(fields, on, said):
    with pytest.raises(ConfigError, match=said):
        skypilot(**fields).render(job_on(on))


def test_a_job_on_nothing_is_an_error():
    with pytest.raises(ConfigError, match="not said on what to run"):
        skypilot().render(Job(("train", "tiny-lm"), Path("/runs/a"), bundle=BUNDLE))


@pytest.fixture
def sky(tmp_path, monkeypatch):
    return Program("sky", tmp_path, monkeypatch)


QUEUE = [
    {"job_id": 1, "job_name": "someone-elses", "status": "RUNNING"},
    {"job_id": 2, "job_name": NAME, "status": "FAILED_SETUP", "failure_reason": "no quota"},
    {"job_id": 3, "job_name": NAME, "status": "ManagedJobStatus.RECOVERING", "recovery_count": 4},
]


def test_submit_gives_task_bundle_and_token_to_skypilot(sky):
    sky.says({"jobs queue": "[]"})
    info = skypilot().submit(job_on("gpu-h100-16"))
    assert (info.name, info.state, info.directory) == (NAME.removeprefix("dovetail-"), "waiting", "/runs/a")
    (launch,) = [call for call in sky.calls if "launch" in call.arguments]
    assert launch.arguments == ["jobs", "launch", "--yes", "--detach-run", "--secret", "DOVETAIL_TOKEN", "task.yaml"]
    assert launch.files == [f"{BUNDLE.hash}.tar.gz", "task.yaml"]
    assert re.fullmatch(r"[0-9a-f]{64}", launch.variables["DOVETAIL_TOKEN"])
    assert launch.variables["DOVETAIL_TOKEN"] not in skypilot().render(job_on("gpu-h100-16"))["task.yaml"]


def test_a_job_that_is_there_is_returned(sky):
    sky.says({"jobs queue": json.dumps(QUEUE)})
    info = skypilot().submit(job_on("gpu-h100-16"))
    assert (info.id, info.state, info.detail, info.restarts) == ("3", "waiting", "recovering", 4)
    assert [info.id for info in skypilot().jobs()] == ["3", "2"]
    assert skypilot().jobs()[1].detail == "no quota"
    assert not any("launch" in call.arguments for call in sky.calls)


def test_check_logs_and_cancel_are_commands_of_skypilot(sky):
    sky.says({"launch --dryrun": "would take 2x H100:8\n", "jobs logs": "one\ntwo\n", "jobs queue": json.dumps(QUEUE)})
    assert skypilot().check(job_on("gpu-h100-16")) == "would take 2x H100:8\n"
    info = skypilot().jobs()[0]
    assert list(skypilot().logs(info, follow=False)) == ["one", "two"]
    assert skypilot().follow(info) == 1
    skypilot().cancel(info)
    assert sky.calls[-1].arguments == ["jobs", "cancel", "--yes", "3"]


def test_what_skypilot_refuses_and_where_it_is_missing_is_one_clear_error(sky):
    sky.says({}, fails={"launch": "No cloud is enabled"})
    with pytest.raises(ConfigError, match=r"SkyPilot refuses.\n  It says:\n    No cloud is enabled"):
        skypilot().check(job_on("gpu-h100-16"))
    sky.remove()
    with pytest.raises(ConfigError, match=r"there is no sky on the PATH.\n  Install SkyPilot"):
        skypilot().jobs()


def test_what_has_ended_is_launched_again_by_its_command():
    with pytest.raises(ConfigError, match=r"does not keep what job 'a' was.\n  Launch it again by the same command"):
        skypilot().resume(JobInfo("1", "a", "failed"), Record("skypilot", "1", "a", "/runs/a"))


_PARSE = """
import sys, sky
for file in sys.argv[1:]:
    task = sky.Task.from_yaml(file)
    ways = task.resources if isinstance(task.resources, list) else sorted(task.resources, key=str)
    names = [",".join(each.accelerators) for each in ways]
    print(task.name, task.num_nodes, type(task.resources).__name__, *names, *(each.use_spot for each in ways))
"""


@pytest.mark.slow
@pytest.mark.skipif(not SKY.exists(), reason="needs SkyPilot: make skypilot")
def test_skypilot_reads_the_tasks(tmp_path):
    """In a home of its own, because it writes there."""
    files = sorted(DIRECTORY.glob("skypilot-*.yaml"))
    (tmp_path / f"{BUNDLE.hash}.tar.gz").write_bytes(BUNDLE.packed())
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    environment["DOVETAIL_TOKEN"] = "secret"
    command = [SKY, "-c", _PARSE, *files]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    gpus, tpus = [line for line in done.stdout.splitlines() if line.startswith("dovetail-")]
    assert gpus.split()[1:] == [
        *("3", "list", "A100-80GB", "H100", "H200", "A100-80GB", "H100", "H200"),
        *("True", "True", "True", "False", "False", "False"),
    ]
    assert tpus.split()[1:] == ["1", "set", "tpu-v6e-16", "True"]
