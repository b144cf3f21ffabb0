# SPDX-License-Identifier: Apache-2.0
"""`dovetail schedule`."""

import json

import pytest

from dovetail.cli import main

POOLS = """
[new]
count = 8
block = 4
price = 4.0
price_date = "2026-03"

[old]
count = 8
price = 1
"""
JOBS = """
[teams.a]
quota = { new = 4, old = 4 }

[teams.b]
quota = { new = 4, old = 4 }

[jobs.first]
chips = 8
steps = 1e4
team = "a"
rates = { new = { 8 = 2.0 } }

[jobs.second]
chips = [4, 8]
steps = 1e4
team = "b"
rates = { new = { 4 = 1.0, 8 = 1.8 } }
running = { pool = "new", chips = 8 }
"""
RATES = "gpu,kind,gpus,steps_per_s\nnew,lm,1,4\nold,lm,1,1\nnew,cnn,4,9\nold,cnn,4,6\n"
TRACE = "trace,kind,gpus,steps,arrival_s\n" + "".join(
    f"t,{'lm' if i % 3 else 'cnn'},{1 if i % 3 else 4},{4000 + 900 * i},{200 * i}\n" for i in range(12)
)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in [("jobs.toml", JOBS), ("pools.toml", POOLS), ("rates.csv", RATES), ("trace.csv", TRACE)]:
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_decision_says_who_runs_where_what_chips_are_worth_and_why_others_wait(files, capsys):
    assert main(["schedule", "jobs.toml", "pools.toml"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("by jct: the best placement, ")
    assert "; running: 1, waiting: 1" in out
    assert "keep  second  new       8  2 blocks of 4" in out
    assert "worth of a chip" in out
    assert "first waits: new quota of team a is lent to second until about 1.5 h from now" in out
    assert "  cheapest change: add 8 chips to new, for 32.00 US dollars an hour" in out


def test_as_json_it_has_the_same_and_what_engines_do(files, capsys):
    assert main(["schedule", "jobs.toml", "pools.toml", "--json", "--objective", "throughput"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["actions"] == [
        {"job": "second", "action": "keep", "pool": "new", "chips": 8, "shape": "2 blocks of 4"}
        | {"why": "by the quota of its team, where it is fastest"}
    ]
    assert set(found["prices"]) == {"new", "old"}
    assert {"job", "pool", "chips", "taken", "shape", "rate", "seconds"} == set(found["placements"][0])
    waiting = found["waiting"][0]
    assert waiting["job"] == "first"
    assert waiting["changes"][0]["checked"]


def test_a_trace_is_simulated_beside_simple_policies(files, capsys):
    assert main(["schedule", "trace.csv", "pools.toml", "--rates", "rates.csv", "--simulate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    outcomes = found["traces"]["t"]
    assert next(iter(outcomes)) == "fifo"
    assert outcomes["dovetail, jct"]["mean"] <= min(each["mean"] for each in outcomes.values())
    args = ["schedule", "trace.csv", "pools.toml", "--rates", "rates.csv", "--simulate", "t", "--rate-error", "0.3"]
    assert main([*args, "--round", "10min", "--restart", "30s"]) == 0
    out = capsys.readouterr().out
    assert "rounds of 600 s, 30 s for a restart" in out
    assert "wrong rates cost, on average over 5 seeds: " in out


def test_jobs_of_a_file_can_be_simulated_too(files, capsys):
    assert main(["schedule", "jobs.toml", "pools.toml", "--simulate"]) == 0
    assert "jobs.toml: 2 jobs" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere.toml", "pools.toml"], "JOBS nowhere.toml: it cannot be read: No such file"),
        (["jobs.toml", "nowhere.toml"], "POOLS nowhere.toml: it cannot be read"),
        (["trace.csv", "pools.toml", "--simulate"], "--rates FILE.csv is missing"),
        (["trace.csv", "pools.toml", "--rates", "rates.csv"], "--simulate is missing"),
        (["trace.csv", "pools.toml", "--rates", "rates.csv", "--simulate", "u"], "has no trace 'u'"),
        (
            ["trace.csv", "pools.toml", "--rates", "trace.csv", "--simulate"],
            "--rates trace.csv, line 1: the columns are",
        ),
        (["jobs.toml", "pools.toml", "--rate-error", "0.3"], "--rate-error is 0.3, expected"),
        (["jobs.toml", "pools.toml", "--round", "soon"], "--round is 'soon', expected an amount"),
        (["jobs.toml", "pools.toml", "--simulate", "t"], "JOBS jobs.toml is no .csv file"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(files, capsys, arguments, message):
    assert main(["schedule", *arguments]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("dovetail schedule: ")
    assert message in found.err


def test_a_job_of_a_recipe_is_predicted(files, capsys):
    (files / "pools.toml").write_text('[h100]\nhardware = "gpu-h100"\ncount = 64\nblock = 8\n')
    (files / "jobs.toml").write_text('[jobs.llm]\nrecipe = "llama2-7b"\nchips = [32, 64]\n')
    assert main(["schedule", "jobs.toml", "pools.toml", "--json"]) == 0
    placement = json.loads(capsys.readouterr().out)["placements"][0]
    assert (placement["job"], placement["pool"], placement["chips"]) == ("llm", "h100", 64)
    assert 0.05 < placement["rate"] < 5
