# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch --via kubernetes` and `skypilot`: from a command line to what a cluster would be given."""

import pytest
import yaml

from dovetail.cli import main
from support.fake_command import Program

CLUSTER = ["launch.image=example.com/dovetail:1", "launch.queue=research", "launch.claim=runs", "directory=/runs/first"]


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    return Program("kubectl", tmp_path, monkeypatch)


def test_dry_run_prints_the_jobset_and_asks_nobody(capsys, kubectl):
    assert (
        main(["launch", "tiny-lm", "--via", "kubernetes", "--on", "tpu-v5e-16", "--dry-run", "steps=7", *CLUSTER]) == 0
    )
    jobset = yaml.safe_load(capsys.readouterr().out)
    assert jobset["kind"] == "JobSet"
    container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert '"train","tiny-lm","steps=7","directory=/runs/first","--on","tpu-v5e-16"' in container["command"][4]
    assert container["command"][5] == "/runs/first"
    assert kubectl.calls == []


def test_dry_run_prints_the_task_for_skypilot(capsys):
    arguments = ["--on", "gpu-h100-8", "--dry-run", "launch.bucket=s3://runs", "directory=/runs/first"]
    assert main(["launch", "tiny-lm", "--via", "skypilot", *arguments]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["resources"]["ordered"][0]["accelerators"] == "H100:8"


def test_what_the_api_server_says_of_a_job_is_shown(capsys, kubectl):
    kubectl.says({"--dry-run=server": "serverside-applied\n", "get localqueue": "{}"})
    assert main(["launch", "tiny-lm", "--via", "kubernetes", "--on", "tpu-v5e-8", "--check", *CLUSTER]) == 0
    assert capsys.readouterr().out == "serverside-applied\nqueue research: 0 wait, 0 run\n"
    kubectl.says({}, fails={"apply": 'jobsets.jobset.x-k8s.io is forbidden: User "me" cannot patch'})
    assert main(["launch", "tiny-lm", "--via", "kubernetes", "--on", "tpu-v5e-8", "--check", *CLUSTER]) == 2
    assert "kubectl apply: you may not do this there." in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--on", "gpu-h100-16", *CLUSTER], "launch.provider is not set"),
        (["--on", "tpu-v5e-8", *CLUSTER[1:]], "launch.image is not set"),
        ([*CLUSTER], "it is not said on what to run"),
        (["--on", "tpu-v5e-8", *CLUSTER, "launch.qeue=a"], "no field 'qeue'. Did you mean 'queue'?"),
    ],
)
def test_a_mistake_ends_with_2_and_one_message_and_nothing_is_submitted(capsys, kubectl, arguments, said):
    assert main(["launch", "tiny-lm", "--via", "kubernetes", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert kubectl.calls == []
