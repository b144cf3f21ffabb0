# SPDX-License-Identifier: Apache-2.0
"""`dovetail jobs`: what is told, followed, cancelled and resumed, with engines that answer, do not, or are not there.

The programs of engines are small ones that write down how they were called; local launches are processes that wait.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.launch import Record
from dovetail.launch._records import began_at, cancel_in
from support.fake_command import Program

ACTIONS = ("show", "logs", "cancel", "resume")


@pytest.fixture(autouse=True)
def nothing(tmp_path, monkeypatch):
    """A directory without runs, on a machine without engines."""
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Slurm's programs, as one."""
    return with_programs(tmp_path, monkeypatch, "squeue", "scancel", "sbatch")


def with_programs(tmp_path, monkeypatch, first, *others):
    program = Program(first, tmp_path, monkeypatch)
    for name in others:
        (tmp_path / "bin" / name).symlink_to(tmp_path / "bin" / first)
    return program


def job(number, state="RUNNING", directory="/runs/a", **fields):
    """Returns a job as `squeue --json` has it."""
    comment = {"comment": f"dovetail ab12 {directory}"}
    own = {"job_id": number, "name": "tiny-lm-ab12", "job_state": [state], "nodes": "n[1-2]", "state_reason": "None"}
    return {**comment, **own, "user_id": os.getuid(), **fields}


def says(program, *jobs, **also):
    program.says({"--json": json.dumps({"jobs": jobs}), **also})


def submitted(directory, number="12", engine="slurm", name="tiny-lm-ab12", **fields):
    """Has a directory of a run of which this was submitted."""
    directory = Path(directory).resolve()
    record = Record(engine=engine, id=number, name=name, directory=str(directory), bundle="ab12", **fields)
    record.write()
    return record


def event(directory, event, **about):
    with (Path(directory) / "launch" / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, **about}) + "\n")


def listed(capsys, *arguments):
    assert main(["jobs", "list", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """Returns the one message that a command ends with."""
    assert main(["jobs", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dovetail jobs: ")
    return err.removeprefix("dovetail jobs: ")


def test_without_engines_and_runs_no_jobs_are_known(capsys):
    assert main(["jobs"]) == 0
    assert capsys.readouterr() == ("No jobs are known here.\n", "")
    assert listed(capsys) == []


def test_without_engines_jobs_that_are_over_are_told_from_their_directories(capsys):
    for name, code in (("a", 0), ("b/c", 1)):
        submitted(f"runs/{name}", name=f"job-{code}", number=f"1{code}")
        event(f"runs/{name}", "over", code=code)
    assert main(["jobs"]) == 0
    out, err = capsys.readouterr()
    head, *rows = out.splitlines()
    assert head.split()[:5] == ["id", "via", "name", "state", "restarts"]
    assert [row.split()[:5] for row in rows] == [
        ["10", "slurm", "job-0", "done", "0"],
        ["11", "slurm", "job-1", "failed", "0"],
    ]
    assert rows[1].endswith(f"ended with exit code 1  {Path('runs/b/c').resolve()}")
    assert err == ""
    assert [(each["id"], each["state"]) for each in listed(capsys)] == [("10", "done"), ("11", "failed")]


def test_a_job_whose_engine_cannot_be_asked_has_not_failed(capsys):
    """As on a machine that sees the directory, but is not one of the cluster's."""
    submitted("runs/a")
    event("runs/a", "start")
    (found,) = listed(capsys)
    assert (found["state"], found["detail"]) == ("unknown", "slurm does not answer")
    assert "whether 12 is over is not known: slurm does not answer" in refused(capsys, "resume", "12")
    assert "there is no squeue here" in refused(capsys, "cancel", "12")


def test_what_an_engine_says_counts_more_than_the_directory(capsys, slurm):
    record = submitted("runs/a")
    event("runs/a", "over", code=85)
    says(slurm, job(12, "PENDING", record.directory, state_reason="BeginTime", restart_cnt={"set": True, "number": 3}))
    assert listed(capsys) == [
        {
            "via": "slurm",
            "id": "12",
            "name": "tiny-lm-ab12",
            "state": "waiting",
            "detail": "pending (BeginTime) on n[1-2]",
            "directory": record.directory,
            "bundle": "ab12",
            "restarts": 3,
        }
    ]
    says(slurm)
    (found,) = listed(capsys)  # It knows nothing of it any more.
    assert (found["state"], found["detail"]) == ("failed", "was asked to end, and saved")


def test_jobs_are_looked_for_under_a_directory_and_in_the_one_that_is_named(capsys, slurm):
    says(slurm)
    for name in ("runs/a", "other/b"):
        submitted(name, number=name[-1])
    assert [each["id"] for each in listed(capsys)] == ["a"]
    assert [each["id"] for each in listed(capsys, "--under", "other")] == ["b"]
    assert [each["id"] for each in listed(capsys, "other/b")] == ["b"]
    assert [each["id"] for each in listed(capsys, "a")] == ["a"]
    assert listed(capsys, "c") == []


def test_show_says_all_that_is_known_and_why_a_job_failed(capsys, slurm):
    says(slurm)
    record = submitted("runs/a", log="/elsewhere/job-12.log")
    event("runs/a", "over", code=1)
    Path("runs/a/launch/report.txt").write_text("process 1 failed:\n  out of memory \x1b[31m\n")
    assert main(["jobs", "show", "tiny-lm-ab12"]) == 0
    assert capsys.readouterr().out == (
        f"via: slurm\nid: 12\nname: tiny-lm-ab12\nstate: failed\ndetail: ended with exit code 1\n"
        f"directory: {record.directory}\nbundle: ab12\nrestarts: 0\nknown to the engine: False\n"
        "log: /elsewhere/job-12.log\nreport: process 1 failed:\n  out of memory \\x1b[31m\n"
    )
    assert main(["jobs", "show", "12", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["known to the engine"], found["log"]) == ("failed", False, "/elsewhere/job-12.log")


def test_a_report_here_is_not_that_of_a_job_without_a_directory(capsys, tmp_path, monkeypatch):
    sky = Program("sky", tmp_path, monkeypatch)
    failed = {
        "job_id": 3,
        "job_name": "dovetail-a",
        "status": "ManagedJobStatus.FAILED",
        "failure_reason": "OOM\nthere",
    }
    sky.says({"queue": json.dumps([failed])})
    Path("launch").mkdir()
    Path("launch/report.txt").write_text("of something else")
    assert main(["jobs", "show", "3"]) == 0
    assert "report" not in capsys.readouterr().out
    assert main(["jobs"]) == 0
    assert "  OOM there" in capsys.readouterr().out.splitlines()[1]  # A job has one line.


def test_logs_of_a_job_that_is_over_are_read_from_its_directory(capsys):
    record = submitted("runs/a", log=str(Path("runs/a/launch/job-12.log").resolve()))
    Path(record.log).write_bytes(b"step 1\nred \x1b[31m \xff\nthe end")
    for also in ([], ["--follow"]):
        assert main(["jobs", "logs", "12", *also]) == 0
        assert capsys.readouterr().out == "step 1\nred \\x1b[31m \ufffd\nthe end\n"
    Path(record.log).unlink()
    said = refused(capsys, "logs", "12")
    assert said == f"jobs: {record.log} is not there: nothing is left of what 12 has printed.\n"


def test_logs_of_a_local_launch_are_those_of_its_first_process(capsys):
    submitted("runs/a", "elsewhere-12", engine="local")
    Path("runs/a/launch/0.log").write_text("step 1\n")
    assert main(["jobs", "logs", "runs/a"]) == 0
    assert capsys.readouterr().out == "step 1\n"


def test_logs_of_a_job_that_its_engine_knows_are_asked_for_there(capsys, tmp_path, monkeypatch):
    sky = Program("sky", tmp_path, monkeypatch)
    sky.says({"queue": json.dumps([{"job_id": 3, "job_name": "dovetail-a", "status": "RUNNING"}]), "logs": "step 1\n"})
    assert main(["jobs", "logs", "-f", "--via", "skypilot", "a"]) == 0
    assert capsys.readouterr().out == "step 1\n"
    assert sky.calls[-1].arguments == ["jobs", "logs", "--follow", "3"]


_WAITS = """
import signal, sys
def end(*_):
    with open(sys.argv[1], "a") as file:
        file.write('{"event": "over", "code": 85}\\n')
    sys.exit(85)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
input()
"""


@pytest.fixture
def launched():
    """A local launch, as far as it can be told from outside: it saves when it is asked to end."""
    Path("runs/a/launch").mkdir(parents=True)
    command = [sys.executable, "-S", "-c", _WAITS, "runs/a/launch/events.jsonl"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        about = {"began": began_at(process.pid)}
        submitted("runs/a", f"{socket.gethostname()}-{process.pid}", engine="local", name="a", about=about)
        event("runs/a", "start")
        yield process
        process.kill()


def test_a_local_launch_is_cancelled_by_its_name_and_has_saved(capsys, launched):
    (found,) = listed(capsys)
    assert (found["via"], found["state"]) == ("local", "running")
    assert main(["jobs", "cancel", "a"]) == 0
    assert capsys.readouterr().out == f"{found['id']}  a  saves, and ends\n"
    assert launched.wait(10) == 85
    (found,) = listed(capsys)
    assert (found["state"], found["detail"]) == ("cancelled", "it has saved")
    assert main(["jobs", "cancel", "a"]) == 0
    assert capsys.readouterr().out == f"{found['id']} is over: cancelled\n"
    assert "Launch it again, as before: it goes on where it stopped." in refused(capsys, "resume", "a")


def test_logs_of_a_local_launch_are_followed_until_it_ends(capsys, launched):
    Path("runs/a/launch/0.log").write_text("step 1\n")
    launched.terminate()
    assert main(["jobs", "logs", "-f", "a"]) == 0
    assert capsys.readouterr().out == "step 1\n"


def test_the_process_of_another_that_has_the_number_of_a_local_launch_is_not_ended(capsys, launched):
    number = f"{socket.gethostname()}-{launched.pid}"
    submitted("runs/a", number, engine="local", name="a", about={"began": 1})
    event("runs/a", "over", code=1)
    assert main(["jobs", "cancel", "a"]) == 0
    assert capsys.readouterr().out == f"{number} is over: failed\n"
    assert launched.poll() is None


def test_a_local_launch_of_another_machine_is_not_cancelled_from_here(capsys):
    submitted("runs/a", f"elsewhere-{os.getpid()}", engine="local", name="a")
    event("runs/a", "start")
    said = refused(capsys, "cancel", "a")
    assert said == f"jobs: elsewhere-{os.getpid()} is not of this machine: cancel it where it runs.\n"


def test_a_job_is_cancelled_by_its_engine_and_written_down_in_its_directory(capsys, slurm):
    record = submitted("runs/a")
    says(slurm, job(12, directory=record.directory))
    assert main(["jobs", "cancel", "runs/a"]) == 0
    assert capsys.readouterr().out == "12  tiny-lm-ab12  saves, and ends\n"
    assert slurm.calls[-1].arguments == ["--signal=TERM", "12"]
    assert Path("runs/a/launch/cancelled").read_text() == "12\n"
    says(slurm, job(12, "FAILED", record.directory))
    (found,) = listed(capsys)
    assert found["state"] == "cancelled"


def test_a_job_that_is_over_is_submitted_again_by_resume_and_one_that_is_not_is_left(capsys, slurm):
    record = submitted("runs/a", files={"job.sh": "#!/bin/bash\n# mine\n"}, about={"runs": []})
    says(slurm, job(12, directory=record.directory))
    assert main(["jobs", "resume", "12"]) == 0
    assert capsys.readouterr().out == f"12  tiny-lm-ab12  running  {record.directory}\n"
    says(slurm, job(12, "CANCELLED", record.directory), **{"--parsable": "13\n"})
    cancel_in(Path(record.directory), "12")
    assert main(["jobs", "resume", "12"]) == 0
    assert capsys.readouterr().out == f"13  tiny-lm-ab12  waiting  {record.directory}\n"
    (handed,) = [call for call in slurm.calls if "--parsable" in call.arguments]
    assert handed.given == "#!/bin/bash\n# mine\n"
    says(slurm, job(12, "CANCELLED", record.directory), job(13, "COMPLETED", record.directory))
    assert main(["jobs", "show", "tiny-lm-ab12", "--json"]) == 0  # Of several that are over, the last.
    assert json.loads(capsys.readouterr().out)["id"] == "13"


def test_the_last_of_several_in_one_place_is_the_one_with_the_largest_number(capsys, tmp_path, monkeypatch):
    sky = Program("sky", tmp_path, monkeypatch)
    jobs = [{"job_id": number, "job_name": "dovetail-a", "status": "SUCCEEDED"} for number in (9, 10, 8)]
    sky.says({"queue": json.dumps(jobs)})
    assert main(["jobs", "show", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "10"


def test_a_name_that_stands_for_several_is_refused_with_their_ids(capsys, slurm):
    for ended in (False, True):
        states = ("COMPLETED", "FAILED") if ended else ("RUNNING", "PENDING")
        says(slurm, *(job(n, state, f"/runs/{n}") for n, state in zip((12, 13), states, strict=True)))
        for action in ACTIONS:
            said = refused(capsys, action, "tiny-lm-ab12")
            assert said == "jobs: 'tiny-lm-ab12' stands for several: 12, 13. Name one by its id.\n"
        assert main(["jobs", "show", "13"]) == 0
        assert "id: 13\n" in capsys.readouterr().out
        assert main(["jobs", "show", "/runs/12"]) == 0
        assert "id: 12\n" in capsys.readouterr().out


def test_a_sweep_is_cancelled_as_a_whole_or_by_one_of_its_runs(capsys, slurm):
    runs = [str(Path(f"runs/a/{n}").resolve()) for n in range(2)]
    record = submitted("runs/a", about={"runs": runs})
    for task, run in enumerate(runs):
        submitted(run, f"12_{task}")
    parts = [
        job(20 + n, directory=record.directory, array_job_id={"set": True, "number": 12}, array_task_id=n)
        for n in range(2)
    ]
    says(slurm, *parts)
    assert [(each["id"], each["directory"]) for each in listed(capsys)] == [("12_0", runs[0]), ("12_1", runs[1])]
    assert main(["jobs", "cancel", "12_1"]) == 0
    assert [call.arguments for call in slurm.calls if "--json" not in call.arguments] == [["--signal=TERM", "12_1"]]
    says(slurm, *parts)
    assert main(["jobs", "cancel", "12"]) == 0
    assert [call.arguments for call in slurm.calls if "--json" not in call.arguments] == [
        ["--signal=TERM", "12_0", "12_1"]
    ]
    capsys.readouterr()
    assert "stands for several: 12_0, 12_1." in refused(capsys, "logs", "12")


def test_one_run_of_a_sweep_is_not_resumed_alone(capsys, slurm):
    """What was submitted is all of it: to submit that again would run all of it again."""
    submitted("runs/a/1", "12_1", files={"job.sh": "all of them"})
    says(slurm)
    assert "jobs: 12_1 is one run of a sweep.\n  Launch the sweep again" in refused(capsys, "resume", "12_1")
    assert [call for call in slurm.calls if "--parsable" in call.arguments] == []


@pytest.mark.parametrize("action", ACTIONS)
def test_a_job_that_nobody_knows_is_refused(capsys, slurm, action):
    says(slurm, job(12))
    said = refused(capsys, action, "nobody")
    assert said == "jobs: there is no job 'nobody'. `dovetail jobs` lists all that are known here.\n"
    assert refused(capsys, action).startswith(f"jobs {action}: say which one: its id, its name, or the directory")
    assert refused(capsys, action, "12", "13") == "jobs: '13' is one job too many.\n"


@pytest.mark.parametrize(
    "via, said",
    [
        ("slurm", "slurm: there is no squeue here. Run this where Slurm's programs are installed.\n"),
        ("kubernetes", "there is no kubectl on the PATH.\n  Install it, and log in to the cluster.\n"),
        ("skypilot", "there is no sky on the PATH.\n  Install SkyPilot, and `sky check` the clouds.\n"),
    ],
)
def test_an_engine_that_is_asked_for_and_is_not_here_is_an_error(capsys, via, said):
    for arguments in (["list"], ["show", "a"], ["cancel", "a"]):
        assert refused(capsys, *arguments, "--via", via) == said


PROGRAMS = {"slurm": "squeue", "kubernetes": "kubectl", "skypilot": "sky"}
RUBBISH = [
    "",
    "no JSON",
    "[]",
    "{}",
    "null",
    "7",
    '{"jobs": 7}',
    '{"jobs": [7]}',
    '{"items": [{}]}',
    '[{"job_name": 1}]',
]
RUBBISH += ['{"jobs": [{"comment": "dovetail a /b"}]}', '[{"job_name": "dovetail-a"}]', '{"items": [{"metadata": {}}]}']


@pytest.mark.parametrize("text", RUBBISH)
@pytest.mark.parametrize("via", PROGRAMS)
def test_an_engine_that_answers_rubbish_is_one_message_and_other_jobs_are_told_still(
    capsys, tmp_path, monkeypatch, via, text
):
    program = Program(PROGRAMS[via], tmp_path, monkeypatch)
    program.says({"": text})
    submitted("runs/a", "elsewhere-1", engine="local")
    code = main(["jobs", "list", "--via", via])
    out, err = capsys.readouterr()
    assert (code, out) in ((2, ""), (0, "No jobs are known here.\n"))  # Some of it is an answer: no jobs.
    assert "Traceback" not in err
    assert main(["jobs", "list", "--json"]) == 0
    out, others = capsys.readouterr()
    assert [each["id"] for each in json.loads(out)] == ["elsewhere-1"]
    assert (others == "") == (code == 0)
    assert others.startswith("dovetail jobs: ") == (code == 2)


def test_what_an_engine_says_in_colours_is_spelled_out(capsys, slurm):
    slurm.says({}, fails={"--json": "slurm_load_jobs error: Access \x1b[31mdenied"})
    assert main(["jobs"]) == 0
    out, err = capsys.readouterr()
    assert out == "No jobs are known here.\n"
    assert err == "dovetail jobs: slurm: slurm_load_jobs error: Access \\x1b[31mdenied\n"


def test_what_is_said_of_an_engine_says_which(capsys, tmp_path, monkeypatch):
    kubectl = Program("kubectl", tmp_path, monkeypatch)
    kubectl.says({"": '{"items": []}'})
    assert main(["jobs", "list", "--via", "kubernetes", "launch.namespace=team"]) == 0
    assert all(call.arguments[:2] == ["--namespace", "team"] for call in kubectl.calls)
    capsys.readouterr()
    said = refused(capsys, "list", "launch.namespace=team")
    assert said == "jobs: launch.namespace=team is of one engine: say which, as in --via slurm.\n"
    assert "no field 'namspace'" in refused(capsys, "list", "--via", "kubernetes", "launch.namspace=team")


def test_jobs_of_one_engine_alone_are_told_if_that_is_asked_for(capsys, slurm):
    says(slurm, job(12))
    submitted("runs/b", "elsewhere-1", engine="local")
    submitted("runs/c", "c", engine="kubernetes")
    assert [each["id"] for each in listed(capsys, "--via", "slurm")] == ["12"]
    assert [each["id"] for each in listed(capsys)] == ["12", "elsewhere-1", "c"]


def test_a_half_written_record_hides_no_other_job(capsys):
    submitted("runs/a")
    Path("runs/b/launch").mkdir(parents=True)
    Path("runs/b/launch/job.json").write_text('{"engine": "slurm", "id')
    assert [each["id"] for each in listed(capsys)] == ["12"]
