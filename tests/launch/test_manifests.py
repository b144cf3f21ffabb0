# SPDX-License-Identifier: Apache-2.0
"""Everything that is rendered, through all checks that can be had without a cluster: `make manifests` installs them."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
import yaml

from golden_launch import DIRECTORY, broken, job_on, kubernetes
from support.rendered import cases, random_cases

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("DOVETAIL_MANIFESTS", ROOT / ".venv" / "manifests" / "bin" / "python"))
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs the schemas of Kubernetes: make manifests")

# What the packages refuse of the 13 mistakes; the other nine they let pass. docs/launch-kubernetes.md has the table.
FOUND = {
    "a typo in a field of the JobSet": {"model"},
    "a typo in a field of the job": {"model", "core"},
    "a typo in a field of the pod": {"model", "core"},
    "a text in place of a number": {"model"},
}


def findings(groups):
    """Returns what the checks say of each list of manifests."""
    command = [PYTHON, ROOT / "tools" / "check_manifests.py", "--stdin"]
    done = subprocess.run(command, input=json.dumps(groups), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_goldens_are_valid():
    files = sorted(DIRECTORY.glob("kubernetes-*.yaml"))
    assert [found for found in findings([list(yaml.safe_load_all(file.read_text())) for file in files]) if found] == []


@pytest.mark.long
def test_all_that_is_rendered_is_valid():
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # Shown when the test fails.
    groups = []
    for engine, job in [*cases(), *random_cases(seed, 20)]:
        manifests = [yaml.safe_load(engine.render(job)["jobset.yaml"])]
        if engine.cfg.queue is not None:
            (text,) = engine.render_queue(job, 4096).values()
            manifests += yaml.safe_load_all(text)
        groups.append(manifests)
    gang = kubernetes()._gang(job_on("tpu-v5e-8"))
    groups.append([*gang.kept("token"), *gang.pieces()])
    assert [found for found in findings(groups) if found] == []


def test_which_mistakes_the_packages_find():
    jobset = yaml.safe_load(kubernetes(priority="high").render(job_on("tpu-v5p-512x2"))["jobset.yaml"])
    variants = broken(jobset)
    said = findings([[each] for each in variants.values()])
    by_mistake = {mistake: {check for check, _ in found} for mistake, found in zip(variants, said, strict=True)}
    assert {mistake: checks for mistake, checks in by_mistake.items() if checks} == FOUND
