# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch --via kubernetes` and `skypilot`: from a command line to what a cluster would be given."""

import pytest
import yaml

from dovetail.cli import main
from dovetail.data import Preparation, ShippedTokenizer, corpus_path
from support.fake_command import Program

CLUSTER = ["launch.image=example.com/dovetail:1", "launch.queue=research", "launch.claim=runs", "directory=/runs/first"]


def prepare(to):
    """Prepared data at a place."""
    source = str(corpus_path("moby-dick", "held-out"))
    Preparation.Config(sources=[source], tokenizer=ShippedTokenizer.Config(), to=str(to), workers=0).build().run()


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


def test_data_and_what_a_run_goes_on_with_are_told_to_the_processes_of_each_engine(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = ["--data-change", "keep", "--allow-change", "steps=7", "--dry-run"]
    prepare(tmp_path / "prepared")
    assert main(["launch", "tiny-lm", "--data", "prepared", *more]) == 0
    here = capsys.readouterr().out
    assert "dovetail train tiny-lm steps=7 --data-change keep --allow-change --data prepared" in here
    assert main(["launch", "tiny-lm", "--via", "slurm", "--data", "prepared", *more]) == 0
    assert f'"--data","{tmp_path}/prepared"' in capsys.readouterr().out.replace("\\", "").replace(", ", ",")
    on = ["--via", "kubernetes", "--on", "tpu-v5e-8", *CLUSTER]
    assert main(["launch", "tiny-lm", *on, "--data", "s3://bucket/web", "--from", "/runs/base", *more]) == 0
    jobset = yaml.safe_load(capsys.readouterr().out)
    container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert (
        '"--from","/runs/base","--data-change","keep","--allow-change","--data","s3://bucket/web"'
        in container["command"][4]
    )
    (tmp_path / "a.txt").write_text("Call me Ishmael. " * 100)
    (tmp_path / "b.txt").write_text("Some years ago. " * 100)
    assert main(["launch", "tiny-lm", "--via", "slurm", "--text", "a.txt", "b.txt", "--dry-run"]) == 0
    assert f'"--text","{tmp_path}/a.txt","{tmp_path}/b.txt"' in capsys.readouterr().out.replace(", ", ",")
    assert main(["launch", "tiny-lm", "--text", "*.txt", "steps=3", "--sweep", "seed=1,2", "--dry-run"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("dovetail launch tiny-lm --via local steps=3 seed=1 --text '*.txt' directory=")
    assert first.endswith("/runs/tiny-lm-text/sweep/seed=1")
    assert "seed=2" in second


PODS = ["--via", "kubernetes", "--on", "tpu-v5e-8", *CLUSTER]
MACHINES = ["--via", "skypilot", "--on", "gpu-h100-8", "launch.bucket=s3://runs", "directory=/runs/a"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (
            [*PODS, "--data", "here"],
            "/here', and pods share only what is below '/runs' (launch.mount).\n  Put",
        ),
        ([*MACHINES, "--from", "here"], "/here', and hosts share only what is below '/runs' (launch.mount).\n  Put it"),
        (["--via", "slurm", "--data", "nowhere"], "--data: there is no prepared data at "),
        (["--data", "nowhere"], "--data: there is no prepared data at "),
        (["--text", "no.txt"], "no file matches 'no.txt'"),
        (["--text", "a.txt", "--data", "b"], "--text and --data: give one of them."),
    ],
)
def test_data_that_hosts_would_not_have_is_refused(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    assert main(["launch", "tiny-lm", *arguments, "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_a_recipe_without_data_is_refused_before_chips_are_waited_for(capsys, tmp_path):
    assert main(["launch", "llama3.2-1b", "--via", "slurm", "--on", "gpu-h100-8", f"directory={tmp_path}/a"]) == 2
    assert "  input.dataset.path: str | list[str]\n    Prepare text once" in capsys.readouterr().err
