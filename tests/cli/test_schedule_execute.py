# SPDX-License-Identifier: Apache-2.0
"""`dovetail schedule --execute`: what cannot be carried out is one message, and nothing is submitted."""

import json

import pytest
from filelock import FileLock

from dovetail.cli import main
from support.fake_command import Program

POOLS = '[fast]\ncount = 4\nvia = "slurm"\nlaunch = ["constraint=h100"]\n'
JOBS = '[jobs.one]\nrecipe = "tiny-lm"\noverrides = ["steps=50"]\nchips = 2\nrates = { fast = { 2 = 1.0 } }\n'


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = Program("squeue", tmp_path, monkeypatch)
    sbatch = (tmp_path / "bin" / "squeue").read_text()
    (tmp_path / "bin" / "sbatch").write_text(sbatch)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    program.says({"--states=all": '{"jobs": []}', "--parsable": "17\n"})
    return program


def run(jobs: str, pools: str, *options: str) -> int:
    for name, text in (("jobs.toml", jobs), ("pools.toml", pools)):
        with open(name, "w") as file:
            file.write(text)
    return main(["schedule", "jobs.toml", "pools.toml", "--execute", "--rounds", "1", *options])


@pytest.mark.parametrize(
    "jobs, pools, options, said",
    [
        (JOBS, POOLS.replace('via = "slurm"\n', ""), [], "[fast]: via is missing, and --execute hands jobs to engines"),
        (JOBS, POOLS.replace("slurm", "slrum"), [], "Did you mean 'slurm'?"),
        (JOBS, POOLS.replace('"slurm"', '"skypilot"'), [], "via is 'skypilot', and --execute hands jobs to engines"),
        (JOBS, POOLS.replace("constraint=", "constrain="), [], "[fast]: launch: "),
        (JOBS.replace('recipe = "tiny-lm"\n', "steps = 9\n"), POOLS, [], "recipe is missing, and --execute runs it"),
        (f"{JOBS}steps = 9\n", POOLS, [], "[jobs.one]: steps is set, and with --execute the run says so itself"),
        (f'{JOBS}running = {{ pool = "fast", chips = 2 }}\n', POOLS, [], "running is set"),
        (f'{JOBS}directory = "a"\n{JOBS.replace("one", "two")}directory = "./a"\n', POOLS, [], "the same directory"),
        (JOBS.replace("jobs.one", 'jobs."../one"'), POOLS, [], "it must have no /"),
        (JOBS, POOLS, ["--simulate"], "--execute and --simulate exclude each other"),
        (JOBS.replace("tiny-lm", "tiny-ml"), POOLS, [], "tiny-ml"),
    ],
)
def test_a_mistake_is_one_message_and_nothing_is_submitted(slurm, capsys, jobs, pools, options, said):
    assert run(jobs, pools, *options) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not any("--parsable" in call.arguments for call in slurm.calls)


def test_rounds_are_of_execute(slurm, capsys):
    assert main(["schedule", "jobs.toml", "pools.toml", "--rounds", "1"]) == 2
    assert "--rounds counts the rounds of --execute, which is missing" in capsys.readouterr().err


def test_two_schedulers_of_the_same_jobs_are_one_too_many(slurm, capsys, tmp_path):
    (tmp_path / "jobs.toml.state").mkdir()
    with FileLock(tmp_path / "jobs.toml.state" / "lock"):
        assert run(JOBS, POOLS) == 2
    assert "another scheduler carries out jobs.toml" in capsys.readouterr().err
    assert slurm.calls == []


def test_an_engine_that_does_not_answer_ends_the_first_round_and_nothing_is_submitted(slurm, capsys):
    slurm.says({}, fails={"--states=all": "slurm_load_jobs error: Invalid user id"})
    assert run(JOBS, POOLS) == 2
    assert "slurm: " in capsys.readouterr().err
    assert not any("--parsable" in call.arguments for call in slurm.calls)


def test_a_job_is_handed_to_the_engine_of_its_pool_with_what_both_say(slurm, capsys):
    assert run(JOBS, POOLS, "--json") == 0
    (call,) = (call for call in slurm.calls if "--parsable" in call.arguments)
    assert "#SBATCH --constraint=h100\n" in call.given
    assert '"train","tiny-lm","steps=50"' in call.given
    assert '"--mesh","data=2"' in call.given
    told = json.loads(capsys.readouterr().out)
    assert told["did"] == [
        {"job": "one", "what": "started", "place": ["fast", 2], "id": "17", "why": "where it is fastest"}
    ]
    assert told["jobs"]["one"]["state"] == "waits"


def test_what_an_engine_refuses_is_said(slurm, capsys):
    slurm.says({"--states=all": '{"jobs": []}'}, fails={"--parsable": "sbatch: error: Invalid account"})
    assert run(JOBS, POOLS) == 1
    out = capsys.readouterr().out
    assert "one  refused  fast      2     0           slurm: Invalid account" in out
