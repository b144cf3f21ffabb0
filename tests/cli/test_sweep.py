# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch --sweep`: which runs there are, which of them are launched, and what is said of them."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cli import main
from dovetail.cli._sweep import grid, name_of
from dovetail.config import ConfigError
from dovetail.launch import Record, exit_code_in
from support.slurm_run import RECIPE, SRC, here

PEAKS = ["--sweep", "learner.schedule.peak=1e-3,3e-3"]
# In place of `dovetail launch ... directory=DIRECTORY`: a run whose loss is 10 times its peak.
_RUN = """#!/bin/sh
for last; do case $last in learner.schedule.peak=*) peak=${last#*=} ;; esac; done
run=${last#directory=}
echo "$*" >>"$run/../called"
mkdir -p "$run/launch"
[ -e "$run/../fails" ] && exit 1
if [ -e "$run/../hangs" ]; then
  trap 'echo "{\\"event\\": \\"over\\", \\"code\\": 85}" >>"$run/launch/events.jsonl"; exit 85' TERM
  echo "{\\"event\\": \\"launched\\"}" >>"$run/launch/events.jsonl"
  while :; do sleep 0.05; done
fi
echo "{\\"step\\": 1, \\"loss\\": ${peak}1}" >"$run/metrics.jsonl"
echo "{\\"event\\": \\"over\\", \\"code\\": 0}" >>"$run/launch/events.jsonl"
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """The directory of a sweep, whose runs are made by a small program."""
    program = tmp_path / "program"
    program.write_text(_RUN)
    program.chmod(0o755)
    monkeypatch.setattr("dovetail.cli._sweep.sys.executable", str(program))
    return tmp_path / "first"


def _launch(directory: Path, *arguments: str) -> int:
    return main(["launch", "tiny-lm", f"directory={directory}", *PEAKS, *arguments])


def _called(directory: Path) -> list[str]:
    """Returns the names of the runs that were launched."""
    file = directory / "sweep" / "called"
    return [Path(line).name for line in file.read_text().splitlines()] if file.exists() else []


def test_each_run_is_launched_once_and_the_best_is_said(capsys, sweep):
    assert _launch(sweep, "--seeds", "2") == 0
    names = ["peak=1e-3,seed=0", "peak=1e-3,seed=1", "peak=3e-3,seed=0", "peak=3e-3,seed=1"]
    assert _called(sweep) == names
    out = capsys.readouterr().out
    assert out.endswith(
        f"best loss: 1e-31, the mean of 2\n  learner.schedule.peak=1e-3\n"
        f"The table and a picture are in {sweep}/sweep.\n"
    )
    assert (sweep / "sweep" / "results.txt").read_text() in out
    assert _launch(sweep, "--seeds", "2") == 0
    assert _called(sweep) == names  # Nothing more.
    assert "best loss" in capsys.readouterr().out


def test_what_failed_is_launched_again_and_the_others_are_not(capsys, sweep):
    assert _launch(sweep) == 0
    (failed,) = (sweep / "sweep").glob("peak=3e-3")
    with (failed / "launch" / "events.jsonl").open("a") as file:
        file.write('{"event": "launched"}\n{"event": "over", "code": 1}\n')
    (sweep / "sweep" / "fails").touch()
    assert _launch(sweep) == 1
    out = capsys.readouterr().out
    assert f"peak=3e-3 ended with 1: see {failed}/launch.out" in out
    assert out.count("best loss: 1e-31") == 2  # Of the one that is done.
    (sweep / "sweep" / "fails").unlink()
    assert _launch(sweep) == 0
    assert _called(sweep) == ["peak=1e-3", "peak=3e-3", "peak=3e-3", "peak=3e-3"]


def test_more_values_launch_only_the_new_ones(sweep):
    assert _launch(sweep) == 0
    again = ["launch", "tiny-lm", f"directory={sweep}", "--sweep", "learner.schedule.peak=1e-3,2e-3,3e-3"]
    assert main(again) == 0
    assert _called(sweep) == ["peak=1e-3", "peak=3e-3", "peak=2e-3"]


def test_the_results_of_another_run_are_not_taken_for_those_of_this_one(capsys, sweep):
    assert _launch(sweep) == 0
    assert _launch(sweep, "model.dim=64") == 2
    err = capsys.readouterr().err
    assert "peak=1e-3 has a run that was launched as\n  train tiny-lm learner.schedule.peak=1e-3\n" in err
    assert "train tiny-lm model.dim=64 learner.schedule.peak=1e-3\nGive this sweep a directory of its own" in err
    assert len(_called(sweep)) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_sweep_that_is_asked_to_end_has_its_runs_save_and_the_same_command_goes_on(sweep, number, monkeypatch):
    (sweep / "sweep").mkdir(parents=True)
    (sweep / "sweep" / "hangs").touch()
    with _running(sweep, "--at-once", "2") as process:
        _until(lambda: len(list((sweep / "sweep").glob("*/launch/events.jsonl"))) == 2)
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 85
    assert "asked to end: what ran has saved. The same command goes on." in out
    assert len(re.findall(r"saved +0 +-", out)) >= 2
    (sweep / "sweep" / "hangs").unlink()
    assert _launch(sweep) == 0
    assert sorted(_called(sweep)) == ["peak=1e-3", "peak=1e-3", "peak=3e-3", "peak=3e-3"]


def test_of_two_sweeps_in_one_directory_the_second_is_refused(capsys, sweep):
    (sweep / "sweep").mkdir(parents=True)
    (sweep / "sweep" / "hangs").touch()
    with _running(sweep) as process:
        _until(lambda: bool(_called(sweep)))
        assert _launch(sweep) == 2
        assert "another sweep is going on there" in capsys.readouterr().err
        process.terminate()
        process.communicate(timeout=30)
    assert _called(sweep) == ["peak=1e-3"]


def test_a_run_that_a_killed_sweep_has_left_is_waited_for_and_not_launched_twice(sweep):
    run = sweep / "sweep" / "peak=1e-3"
    with subprocess.Popen(["sleep", "1.5"]) as left:
        began = Path(f"/proc/{left.pid}/stat").read_text().rpartition(")")[2].split()[19]
        about = {"began": int(began)}
        Record("local", f"{os.uname().nodename}-{left.pid}", "peak=1e-3", str(run), about=about).write()
        assert _launch(sweep, "--at-once", "2") == 0
        assert left.poll() is not None
    assert _called(sweep) == ["peak=3e-3", "peak=1e-3"]  # It had not come to its end, so it goes on.


def test_a_dry_run_prints_commands_that_work_when_they_are_pasted_and_writes_nothing(capsys, tmp_path):
    swept = ["--sweep", "observers=(Terminal,),(JsonLines, Terminal)"]
    arguments = ["launch", "tiny-lm", f"directory={tmp_path / 'a'}", *swept, "--dry-run", "--processes", "1"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    command = shlex.split(lines[1])
    assert command[0] == "dovetail"
    assert "observers=(JsonLines, Terminal)" in command
    assert command[-1].startswith(f"directory={tmp_path}/a/sweep/observers=_JsonLines,_Terminal_-")
    assert list(tmp_path.iterdir()) == []
    assert main([*command[1:], "--dry-run"]) == 0


def test_via_slurm_a_sweep_is_one_array_and_via_kubernetes_one_job_each_with_a_name_that_stays(capsys, tmp_path):
    arguments = [*PEAKS, "--seeds", "2", "--dry-run", f"directory={tmp_path / 'a'}"]
    assert main(["launch", "tiny-lm", "--via", "slurm", "--at-once", "3", *arguments]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --array=0-3%3\n" in script
    assert f"  3) directory={tmp_path}/a/sweep/peak=3e-3,seed=1; set -- learner.schedule.peak=3e-3 seed=1 ;;" in script
    cluster = ["launch.image=i", "launch.queue=q", "launch.claim=c", "directory=/runs/a", "--on", "tpu-v5e-8"]
    names: list[list[str]] = []
    for peaks in ("1e-3,3e-3", "2e-3,3e-3"):
        swept = ["--sweep", f"learner.schedule.peak={peaks}", "--dry-run"]
        assert main(["launch", "tiny-lm", "--via", "kubernetes", *swept, *cluster]) == 0
        names.append(_names(capsys.readouterr().out))
    assert names[0][1] == names[1][1]  # The run with 3e-3.
    assert len({*names[0], *names[1]}) == 3
    assert list(tmp_path.iterdir()) == []


def _names(text: str) -> list[str]:
    """Returns the names of several JobSets that were printed one after another."""
    start = "apiVersion: jobset"
    return [yaml.safe_load(start + each)["metadata"]["name"] for each in text.split(start)[1:]]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--sweep", "learner.schedule.peek=1,2"], "Did you mean 'learner.schedule.peak'?"),
        (["--sweep", "learner.schedule.peak=1,two"], "two"),
        (["--sweep", "learner.schedule.peak"], "is not an override"),
        (["--sweep", "learner.schedule.peak=1,"], "a value is empty"),
        (["--sweep", "learner.schedule.peak=1,1"], "learner.schedule.peak=1 is there twice"),
        ([*PEAKS, "--sweep", "learner.schedule.peak=2"], "learner.schedule.peak is swept twice"),
        (["--sweep", "seed=1,2", "--seeds", "2"], "seed is swept twice"),
        (["--sweep", "directory=a,b"], "a directory of its own"),
        (["--seeds", "-1"], "--seeds is -1"),
        (["--seeds", "10001"], "10,001 runs"),
        ([*PEAKS, "--at-once", "0"], "--at-once is 0"),
        ([*PEAKS, "--check"], "--via local has none"),
        ([*PEAKS, "launch.spares=x"], "spares"),
    ],
)
def test_a_mistake_ends_with_2_and_one_message_and_nothing_is_launched(capsys, sweep, arguments, said):
    assert main(["launch", "tiny-lm", f"directory={sweep}", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not sweep.exists()


def test_a_metric_that_the_runs_do_not_have_is_said_with_those_that_they_have(capsys, sweep):
    assert _launch(sweep, "--metric", "lss") == 2
    assert "--metric lss: the runs do not have it. They have loss." in capsys.readouterr().err
    assert _launch(sweep) == 0  # Nothing is lost.
    assert len(_called(sweep)) == 2


@pytest.mark.parametrize("option", ["--metric=loss", "--at-once=2"])
def test_options_of_sweeps_are_refused_without_one(capsys, option):
    assert main(["launch", "tiny-lm", option]) == 2
    assert f"{option.partition('=')[0]} is of sweeps, and there is no --sweep" in capsys.readouterr().err


def test_a_grid_that_is_far_too_large_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"10,000,000,000 runs"):
        grid([f"a{number}.b=0,1,2,3,4,5,6,7,8,9" for number in range(10)], 0)


_VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


@given(st.lists(_VALUES, min_size=1, max_size=4))
def test_names_are_those_of_directories_and_differ_whatever_the_values_are(values):
    overrides = [(f"model.dim={value}",) for value in values]
    names = [name_of(each) for each in overrides]
    assert len(set(names)) == len(set(overrides))
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.=,+_-]{0,119}", name)
        assert Path("/a", name).resolve().parent == Path("/a")


def test_values_that_a_shell_would_run_are_only_values(capsys, tmp_path):
    hostile = "$(touch gone); `touch gone` & * \\ \x1b[31m"
    assert _launch(tmp_path / "a", "--sweep", f"checkpoint.directory={hostile}", "--dry-run") == 0
    for line in capsys.readouterr().out.splitlines():
        told = subprocess.run(
            ["sh", "-c", f"set -- {line}; for each; do printf '%s\\n' \"$each\"; done"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=True,
        )
        assert f"checkpoint.directory={hostile}" in told.stdout.splitlines()
    assert _launch(tmp_path / "a", "--sweep", f"checkpoint.directory={hostile}", "--dry-run", "--via", "slurm") == 0
    script = capsys.readouterr().out
    case = script[script.index('case "$SLURM_ARRAY_TASK_ID"') : script.index("esac") + len("esac")]
    code = f'SLURM_ARRAY_TASK_ID=1\n{case}\nprintf "%s\\n" "$@"'
    told = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert told.stdout.splitlines() == ["learner.schedule.peak=3e-3", f"checkpoint.directory={hostile}"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_real_sweep_that_is_killed_goes_on_and_its_best_can_be_pasted(tmp_path):
    (tmp_path / "control").mkdir()
    common = [f"input.control={tmp_path / 'control'}", "steps=12"]
    command = [sys.executable, "-m", "dovetail.cli", "launch", RECIPE, *common, f"directory={tmp_path / 'a'}"]
    command += ["--sweep", "learner.schedule.peak=1e-4,3e-2", "--seeds", "2"]
    env = {**here(), "PYTHONPATH": str(SRC), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    runs = tmp_path / "a" / "sweep"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env) as process:
        _until(lambda: exit_code_in(runs / "peak=1e-4,seed=0") == 0, 120)
        _until(lambda: (runs / "peak=1e-4,seed=1" / "launch" / "events.jsonl").exists(), 60)
        process.kill()
    done = (runs / "peak=1e-4,seed=0" / "launch" / "events.jsonl").read_bytes()
    second = subprocess.run(command, capture_output=True, text=True, env=env, timeout=240)
    assert second.returncode == 0, second.stdout + second.stderr
    assert (runs / "peak=1e-4,seed=0" / "launch" / "events.jsonl").read_bytes() == done
    assert "best loss: 5." in second.stdout
    pasted = shlex.split(second.stdout.splitlines()[-2])
    assert pasted == ["learner.schedule.peak=3e-2"]
    files = {file: file.stat().st_mtime_ns for file in runs.glob("*/launch/*")}
    third = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=True)
    assert third.stdout == second.stdout[second.stdout.rindex("learner.schedule.peak  seed") :]
    assert {file: file.stat().st_mtime_ns for file in runs.glob("*/launch/*")} == files
    root = ET.fromstring((runs / "results.svg").read_text("utf-8"))
    assert len([each for each in root.iter() if each.tag.endswith("circle") and len(each)]) == 4
    again = [*command[:4], RECIPE, *common, *pasted, f"directory={tmp_path / 'b'}", "--dry-run"]
    subprocess.run(again, capture_output=True, env=env, timeout=60, check=True)


@contextlib.contextmanager
def _running(directory: Path, *arguments: str):
    """Yields a process that sweeps."""
    program = directory.parent / "program"
    code = f"import sys; sys.executable = {str(program)!r}; from dovetail.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.orig_argv[0], "-c", code, "launch", "tiny-lm", f"directory={directory}", *PEAKS, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
