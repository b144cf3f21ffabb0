# SPDX-License-Identifier: Apache-2.0
"""The pods of a JobSet as processes on this machine: what their manifest says, and nothing else, makes them train."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dovetail.hardware import hardware
from dovetail.launch import Job, pack
from dovetail.launch._agent import free_port
from golden_launch import kubernetes, skypilot

FIELDS = {"coordinator": "127.0.0.1", "job-completion-index": "0"}


def started(jobset, index, directory: Path) -> subprocess.Popen[bytes]:
    """Starts the pod of a job, as a node would: variables, then the command with all of its $(NAME) replaced."""
    jobs = [each for each in jobset["spec"]["replicatedJobs"] for _ in range(each["replicas"])]
    (container,) = jobs[index]["template"]["spec"]["template"]["spec"]["containers"]
    variables: dict[str, str] = {}
    for each in container["env"]:
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        told = FIELDS | {"job-global-index": str(index)}
        found = [value for name, value in told.items() if path.endswith(f"/{name}']")]
        secret = "secret" if "secretKeyRef" in each.get("valueFrom", {}) else ""
        variables[each["name"]] = found[0] if found else secret or replaced(each["value"], variables)
    inside = {"HOME": directory / "home", "DOVETAIL_BUNDLE": directory / "code", "XDG_CACHE_HOME": directory / "cache"}
    environment = {**variables, **{name: str(place) for name, place in inside.items()}, "JAX_PLATFORMS": "cpu"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [replaced(each, variables) for each in container["command"]]
    command[2] = command[2].replace(" /bundle/", f" {directory.parent}/bundle/")
    directory.mkdir()
    with (directory / "out").open("wb") as out:
        return subprocess.Popen(command, env=environment, cwd=directory, stdout=out, stderr=out)


def replaced(text, variables):
    """Returns a text as a container is given it."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda found: "$" if found[0] == "$$" else variables[found[1]], text)


@pytest.mark.long
def test_pods_that_are_given_what_their_manifest_says_train_and_end(tmp_path):
    """Two hosts, and a spare one that is not needed; the bundle in its pieces, the token, slots by number of job."""
    arguments = ("train", "tiny-lm", "steps=4", "--mesh", "data=2")
    job = Job(arguments, tmp_path / "run", hardware=hardware("trn1-32"), bundle=pack("{}", arguments, {}))
    fields = {"mount": str(tmp_path), "port": free_port(), "spares": 1}
    gang = kubernetes(**fields)._gang(job)
    (tmp_path / "bundle").mkdir()
    for piece in gang.pieces():
        for name, text in piece["binaryData"].items():
            (tmp_path / "bundle" / name).write_bytes(base64.b64decode(text))
    jobset = yaml.safe_load(kubernetes(**fields).render(job)["jobset.yaml"])
    pods = [started(jobset, index, tmp_path / f"pod{index}") for index in (2, 1, 0)]  # In no good order.
    try:
        codes = [pod.wait(timeout=240) for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
    said = "\n".join((tmp_path / f"pod{index}" / "out").read_text() for index in range(3))
    assert codes == [0, 0, 0], said
    assert "step 4/4" in said or "step 4 " in said, said
    events = [json.loads(line) for line in (tmp_path / "run" / "launch" / "events.jsonl").read_text().splitlines()]
    (start,) = [event for event in events if event["event"] == "start"]
    assert len(set(start["slots"]) & {"0", "1", "2"}) == 2  # Those that came first; the other one is the spare.
    assert {event["slot"] for event in events if event["event"] == "host"} >= {"0", "1"}


@pytest.mark.long
def test_nodes_of_skypilot_that_run_what_their_task_says_train_and_end(tmp_path):
    """Its `run` as a shell script, with what SkyPilot sets; `setup` but for what it installs."""
    arguments = ("train", "tiny-lm", "steps=4", "--mesh", "data=2")
    bundle = pack("{}", arguments, {})
    job = Job(arguments, tmp_path / "run", hardware=hardware("gpu-h100-16"), bundle=bundle)
    task = yaml.safe_load(skypilot(mount=str(tmp_path), port=free_port()).render(job)["task.yaml"])
    shared = {"SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1\n", "DOVETAIL_TOKEN": "secret", "JAX_PLATFORMS": "cpu"}
    nodes = []
    for rank in (1, 0):
        home = tmp_path / f"node{rank}"
        (home / "dovetail").mkdir(parents=True)
        (home / "dovetail" / "bundle.tar.gz").write_bytes(bundle.packed())
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "SKYPILOT_NODE_RANK": str(rank)} | shared
        unpack = task["setup"].partition("python3")[0]
        subprocess.run(["bash", "-c", unpack], env=environment, check=True)
        (home / "dovetail" / "python").write_text(sys.executable)
        with (home / "out").open("wb") as out:
            command = ["bash", "-c", task["run"]]
            nodes.append(subprocess.Popen(command, env=environment | task["envs"], cwd=home, stdout=out, stderr=out))
    try:
        codes = [node.wait(timeout=240) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    said = "\n".join((tmp_path / f"node{rank}" / "out").read_text() for rank in (0, 1))
    assert codes == [0, 0], said
    assert "step 4" in said
