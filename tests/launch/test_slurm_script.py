# SPDX-License-Identifier: Apache-2.0
"""The script that Slurm is given, run by bash: Slurm's programs are stubs, and so is Python on hosts."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.launch import Slurm, Variant
from dovetail.launch._host import Work
from dovetail.launch._slurm_script import Script
from golden_launch import BUNDLE, DIRECTORY, job_on, scripts, slurm

SCRIPTS = sorted(scripts())
HOSTILE = ["a b", "it's", 'say "x"', "$(touch PWNED)", "`touch PWNED`", "; touch PWNED #", "&& touch PWNED", "$HOME"]
HOSTILE += [
    "*",
    "-rf",
    "--",
    "\\",
    "{bundle}",
    "%s%j",
    "~",
    "!!",
    "é",
    "PREPARE",
    "a\tb",
    "'; touch PWNED; '",
    "[a",
    "",
]
LINES = ["a\nb", "\ntouch PWNED\n", "x\nPREPARE\ntouch PWNED\n", "'\ntouch PWNED\n'", "\n#SBATCH --nodes=9"]

# Stands for Python on a host: it says where it is, where others reach it, and writes down how a host was started.
_PYTHON = """#!{python} -S
import json, os, sys, time
arguments = sys.argv[1:]
if arguments[0].endswith("_interpreter.py"):
    assert os.path.isfile(arguments[1]), arguments
    print(sys.argv[0])
elif arguments[2] == "addresses":
    print("10.0.0.1:7077,10.1.0.1:7077")
else:
    with open(os.environ["STUBS"] + "/hosts", "a") as file:
        file.write(json.dumps([arguments, dict(os.environ)]) + "\\n")
    exec(os.environ.get("DOES", ""))
"""
_TOLD = """
import pathlib
pathlib.Path(arguments[4], "launch", "code").write_text("{code}\\n")
sys.exit({code})
"""
# Runs what it is given, once, as srun does on each host.
_SRUN = """
printf '%s\\0' "$@" > "$STUBS/srun"
while [ "$1" != bash ]; do shift; done
"$@"
code=$?
eval "$AFTER"
exit $code
"""
_NOTE = 'echo "$(basename "$0") $*" >> "$STUBS/calls"\n'
_SCONTROL = _NOTE + '[ "$1" = show ] && echo "$SLURM_CONFIG"; exit 0\n'


class Ran(NamedTuple):
    """What came of a script."""

    code: int
    out: str
    calls: list[str]  # Of scontrol and scancel.
    hosts: list[tuple[list[str], dict[str, str]]]  # Arguments and environment of each host.


class Stubs:
    """A machine on which Slurm starts a script."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.tmp = directory, directory / "tmp of 'it'"
        self.python = directory / "bin" / "python of $(me)"
        (directory / "bin").mkdir()
        self.tmp.mkdir()
        quick = "exec /bin/sleep 0.01\n"
        programs = {"srun": _SRUN, "scontrol": _SCONTROL, "scancel": _NOTE, "sleep": quick}
        for name, text in programs.items():
            self._program(directory / "bin" / name, f"#!/bin/bash\n{text}")
        self._program(self.python, _PYTHON.format(python=sys.executable))

    def _program(self, file: Path, text: str) -> None:
        file.write_text(text)
        file.chmod(0o755)

    def start(self, text: str, *, code: int | None = None, **variables: str) -> "subprocess.Popen[str]":
        """Starts a script. The first host tells `code`, or does what `DOES` says."""
        for file in ("calls", "hosts"):
            (self.directory / file).write_text("")
        told = {"DOES": _TOLD.format(code=code)} if code is not None else {}
        environment = {
            "PATH": f"{self.directory / 'bin'}:/usr/bin:/bin",
            "TMPDIR": str(self.tmp),
            "STUBS": str(self.directory),
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_CONFIG": "",
            "AFTER": "",
            **told,
            **variables,
        }
        (self.directory / "job.sh").write_text(text.replace("read -rt 60", "read -rt 0.01"))  # Nobody ends it.
        out, err = subprocess.PIPE, subprocess.STDOUT
        command = ["bash", self.directory / "job.sh"]
        return subprocess.Popen(
            command, env=environment, cwd=self.directory, stdout=out, stderr=err, text=True, start_new_session=True
        )

    def run(self, text: str, *, code: int | None = None, **variables: str) -> Ran:
        """Runs a script to its end."""
        with self.start(text, code=code, **variables) as process:
            out, _ = process.communicate(timeout=60)
        assert not list(self.directory.parent.rglob("PWNED*")), out
        calls = (self.directory / "calls").read_text().splitlines()
        hosts = [json.loads(line) for line in (self.directory / "hosts").read_text().splitlines()]
        return Ran(process.returncode, out, calls, hosts)

    def script(self, directory: Path, arguments=(), sweep=(), **fields) -> str:
        """Returns the script of a job, and puts its bundle where it is looked for."""
        BUNDLE.write(directory)
        job = job_on("gpu-h100-16")._replace(directory=directory, name="a", sweep=tuple(sweep))
        job = job._replace(arguments=(*job.arguments, *arguments))
        return slurm(**{"processes": 2, "python": str(self.python), **fields}).render(job)["job.sh"]


@pytest.fixture
def stubs(tmp_path) -> Stubs:
    (tmp_path / "stubs").mkdir()
    return Stubs(tmp_path / "stubs")


def test_scripts_are_as_they_were():
    """`make golden` writes them anew."""
    assert {file.name: file.read_text("utf-8") for file in DIRECTORY.glob("*.sh")} == scripts()


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_accepts_a_script(name):
    done = subprocess.run(["bash", "-n", DIRECTORY / name], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_options_come_before_all_that_is_executed(name):
    """Slurm reads no options after the first command."""
    first, *lines = (DIRECTORY / name).read_text().splitlines()
    options = [line for line in lines if line.startswith("#SBATCH")]
    assert first == "#!/bin/bash"
    assert lines[: len(options)] == options
    assert lines[len(options)] == "set -u"


def options(name) -> dict[str, str]:
    lines = (DIRECTORY / f"slurm-{name}.sh").read_text().splitlines()
    words = [shlex.split(line.removeprefix("#SBATCH ")) for line in lines if line.startswith("#SBATCH")]
    assert all(len(word) == 1 for word in words)
    pairs = [word[0].removeprefix("--").partition("=") for word in words]
    return {name: value for name, _, value in pairs}


def test_what_is_asked_for_is_in_the_options():
    plain, spares, sweep, chips = (options(name) for name in ("plain", "spares-and-a-limit", "sweep", "chips"))
    assert (plain["nodes"], plain["gres"], plain["ntasks-per-node"]) == ("2", "gpu:h100:8", "1")
    assert plain["comment"] == f"dovetail {BUNDLE.hash} /runs/a"
    assert {"exclusive", "requeue"} <= plain.keys()
    assert not {"no-kill", "time", "signal", "array"} & plain.keys()
    assert (spares["nodes"], spares["time"], spares["signal"]) == ("3", "1-12:00:00", "TERM@180")
    assert (spares["constraint"], spares["exclude"], spares["nice"]) == ("[h100*2&a100*1]", "n[7-9]", "100")
    assert "no-kill" in spares  # It goes on when a host is lost.
    assert (sweep["array"], sweep["output"]) == ("0-2%2", "/runs/a/launch/job-%A_%a.log")
    assert (chips["nodes"], chips["ntasks-per-node"]) == ("2", "8")
    assert "no-requeue" in chips
    assert "exclusive" not in chips


@pytest.mark.parametrize("line", LINES)
def test_what_would_make_an_option_several_lines_is_refused(stubs, tmp_path, line):
    for fields in ({"options": [f"--nice={line}"]}, {"export": [line]}):
        with pytest.raises(ConfigError, match="launch: sbatch takes options of one line, and this has several"):
            slurm(processes=2, **fields).render(job_on("gpu-h100-16")._replace(name="a"))
    with pytest.raises(ConfigError, match=r"several: .*--comment="):
        slurm(processes=2).render(job_on("gpu-h100-16")._replace(directory=Path("/runs") / line))
    with pytest.raises(ConfigError, match=r"launch: partition has several lines"):
        slurm(partition=line)


def test_hosts_are_given_what_they_do_where_and_who_they_are(stubs, tmp_path):
    ran = stubs.run(stubs.script(tmp_path / "run"), code=0, HOME="/home/me", SLURM_EXPORT_ENV="NIL")
    assert ran.code == 0, ran.out
    ((arguments, environment),) = ran.hosts
    assert arguments[:3] == ["-m", "dovetail.launch", "host"]
    work = Work.of(arguments[3])
    assert (work.arguments, work.processes) == (job_on("gpu-h100-16").arguments, 2)
    assert arguments[4:] == [str(tmp_path / "run")]
    root = Path(environment["DOVETAIL_BUNDLE"])
    assert root == stubs.tmp / f"dovetail-{os.getuid()}" / BUNDLE.hash
    assert environment["PYTHONPATH"] == str(root / "code")
    assert environment["DOVETAIL_SUPERVISOR"] == "10.0.0.1:7077,10.1.0.1:7077"
    assert environment["DOVETAIL_ID"] == "12"
    assert len(bytes.fromhex(environment["DOVETAIL_TOKEN"])) == 16
    assert environment["SLURM_EXPORT_ENV"] == "ALL"
    assert "DOVETAIL_PER_HOST" not in environment
    assert environment["DOVETAIL_TOKEN"] not in (stubs.directory / "srun").read_text()  # Others see its arguments.
    there = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert there == BUNDLE.files
    assert ran.calls == []


def test_each_start_has_a_token_of_its_own_and_a_bundle_that_is_whole_is_left_as_it_is(stubs, tmp_path):
    text = stubs.script(tmp_path / "run")
    first = stubs.run(text, code=0)
    root = Path(first.hosts[0][1]["DOVETAIL_BUNDLE"])
    (root / "code" / "a.pyc").write_text("")
    before = (root / "config.json").stat().st_ino
    second = stubs.run(text, code=0)
    assert (root / "config.json").stat().st_ino == before
    (root / "config.json").unlink()  # As by one who cleans up in /tmp.
    third = stubs.run(text, code=0)
    assert (root / "config.json").read_bytes() == BUNDLE.files["config.json"]
    assert len({ran.hosts[0][1]["DOVETAIL_TOKEN"] for ran in (first, second, third)}) == 3


@pytest.mark.parametrize("what", ["not ours", "no bundle", "no Python"])
def test_a_host_that_cannot_be_prepared_is_an_error_and_nothing_is_started(stubs, tmp_path, what):
    text = stubs.script(tmp_path / "run")
    if what == "not ours":
        (stubs.tmp / f"dovetail-{os.getuid()}").write_text("")
    elif what == "no bundle":
        (tmp_path / "run" / BUNDLE.file).unlink()
    else:
        stubs.python.unlink()
    ran = stubs.run(text, code=0)
    said = {"not ours": "is not ours", "no bundle": "the bundle cannot be unpacked", "no Python": "No such file"}
    assert said[what] in ran.out
    assert ran.code == (2 if what == "no Python" else 1)
    assert ran.hosts == []


def test_with_a_process_for_each_chip_hosts_know(stubs, tmp_path):
    ran = stubs.run(stubs.script(tmp_path / "run", processes=16, per_host="chips"), code=0)
    assert ran.hosts[0][1]["DOVETAIL_PER_HOST"] == "chips"
    assert "--ntasks=16 --ntasks-per-node=8" in (stubs.directory / "srun").read_text().replace("\0", " ")


def test_lines_of_setup_come_first_and_hosts_have_what_they_set(stubs, tmp_path):
    ran = stubs.run(stubs.script(tmp_path / "run", setup=["export MINE='a b'", "cd /"]), code=0)
    assert ran.hosts[0][1]["MINE"] == "a b"


def test_hostile_overrides_are_handed_over_as_they_are(stubs, tmp_path):
    given = [f"name={text}" for text in [*HOSTILE, *LINES]] + HOSTILE + LINES
    plain = stubs.run(stubs.script(tmp_path / "plain", arguments=given), code=0)
    assert Work.of(plain.hosts[0][0][3]).arguments[-len(given) :] == (*given,)
    runs = [Variant(tmp_path / "sweep" / str(n), (*given[n:],)) for n in (0, 1)]
    for run in runs:
        (run.directory / "launch").mkdir(parents=True)
    text = stubs.script(tmp_path / "sweep", sweep=runs)
    ran = stubs.run(text, code=0, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="1")
    (arguments, environment) = ran.hosts[0]
    assert arguments[4:] == [str(tmp_path / "sweep" / "1"), *given[1:]]
    assert environment["DOVETAIL_ID"] == "7_1"


@pytest.mark.parametrize("name", ["a b $(touch PWNED) `touch PWNED`", 'it\'s "x"; touch PWNED #', "-rf * ~ {a} \\ é &"])
def test_in_a_hostile_directory_a_job_runs_like_in_any_other(stubs, tmp_path, name):
    for code, wanted in ((0, 0), (85, 85)):
        ran = stubs.run(stubs.script(tmp_path / name), code=code, SLURM_CONFIG="RequeueExit             = 85")
        assert ran.code == wanted, ran.out
        assert ran.hosts[0][0][4] == str(tmp_path / name)
    (tmp_path / name / "launch" / "cancelled").write_text("12\n")
    assert stubs.run(stubs.script(tmp_path / name), code=0).calls == ["scancel 12"]


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
texts |= st.sampled_from([*HOSTILE, *LINES])


@settings(max_examples=40)
@given(st.lists(st.tuples(texts, st.lists(texts, max_size=3)), max_size=3), texts, st.integers(0, 2))
def test_directories_and_overrides_of_runs_come_out_of_the_shell_as_they_went_in(variants, directory, chosen):
    script = Script([], [], "", directory, "", 0, variants, [], "", "", requeues=True, by_chip=False)
    text = f'set -u\n{script._choice()}\nprintf \'%s\\0\' "$directory" "$@"'
    environment = {"SLURM_ARRAY_TASK_ID": str(chosen), "PATH": "/nowhere", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["/bin/bash", "-c", text], env=environment, capture_output=True, check=False)
    if variants and chosen >= len(variants):
        assert done.returncode != 0  # Of no run: nothing is started anywhere.
        return
    where, overrides = variants[chosen] if variants else (directory, [])
    assert done.stdout.decode().split("\0") == [where, *overrides, ""]
    assert done.stderr == b""


@pytest.mark.parametrize("code", [0, 1, 2])
def test_what_is_over_is_not_started_again(stubs, tmp_path, code):
    ran = stubs.run(stubs.script(tmp_path / "run"), code=code, SLURM_CONFIG="RequeueExit             = 85")
    assert (ran.code, ran.calls) == (code, [])
    assert ran.out.endswith(f"launch: job 12 ends with {code}\n")


@pytest.mark.parametrize(
    "config, by_slurm",
    [
        ("RequeueExit             = 85", True),
        ("RequeueExit             = 1,85,90", True),
        ("RequeueExit             = 84-85", False),
        ("RequeueExit             = 185,850", False),
        ("RequeueExitHold         = 85", False),
    ],
)
def test_what_has_saved_is_started_again_by_slurm_if_it_is_told_to_and_else_by_the_script(
    stubs, tmp_path, config, by_slurm
):
    ran = stubs.run(stubs.script(tmp_path / "run"), code=85, SLURM_CONFIG=f"Other = 85\n{config}\nLast = 1")
    assert ran.code == 85
    assert ran.calls == ["scontrol show config", *([] if by_slurm else ["scontrol requeue 12"])]


def test_what_was_killed_is_started_again_ten_times(stubs, tmp_path):
    text, killed = stubs.script(tmp_path / "run"), {"DOES": "os.kill(os.getpid(), 9)"}
    for restarts, calls in (("", 2), ("9", 2), ("10", 0)):
        ran = stubs.run(text, **killed, **({"SLURM_RESTART_COUNT": restarts} if restarts else {}))
        assert len(ran.calls) == calls, ran.out
        assert ran.code == (85 if calls else 137)


def test_a_job_that_is_not_to_be_started_again_is_not(stubs, tmp_path):
    ran = stubs.run(stubs.script(tmp_path / "run", requeue=False), code=85)
    assert (ran.code, ran.calls) == (85, [])


def test_how_an_earlier_start_has_ended_counts_not(stubs, tmp_path):
    text = stubs.script(tmp_path / "run")
    (tmp_path / "run" / "launch" / "code").write_text("0\n")
    ran = stubs.run(text, DOES="sys.exit(1)")  # It fails before it can tell.
    assert (ran.code, ran.calls) == (1, [])


def test_a_run_that_is_over_does_not_wait_for_a_host_that_is_lost(stubs, tmp_path):
    with stubs.start(stubs.script(tmp_path / "run"), code=0, AFTER="/bin/sleep 60") as process:
        try:
            assert process.wait(20) == 0
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_cancelled_job_ends_at_once_whatever_slurm_does_with_it(stubs, tmp_path):
    text = stubs.script(tmp_path / "run")
    (tmp_path / "run" / "launch" / "cancelled").write_text("7\n12\n")
    ran = stubs.run(text, code=0)
    assert (ran.code, ran.calls, ran.hosts) == (0, ["scancel 12"], [])
    assert ran.out == "launch: job 12 was cancelled\n"
    (tmp_path / "run" / "launch" / "cancelled").write_text("1\n2\n120\n112\n12_1\n1.\n\n")  # Others.
    assert len(stubs.run(text, code=0).hosts) == 1


def test_a_job_that_was_cancelled_while_it_ran_saves_and_is_not_started_again(stubs, tmp_path):
    cancelled = 'open(arguments[4] + "/launch/cancelled", "a").write("12\\n")\n'
    ran = stubs.run(stubs.script(tmp_path / "run"), DOES=cancelled + _TOLD.format(code=85))
    assert (ran.code, ran.calls, len(ran.hosts)) == (0, ["scancel 12"], 1)


def test_one_run_of_a_sweep_is_cancelled_without_the_others(stubs, tmp_path):
    runs = [Variant(tmp_path / "run" / str(n), ()) for n in (0, 1)]
    for run in runs:
        (run.directory / "launch").mkdir(parents=True)
    text = stubs.script(tmp_path / "run", sweep=runs)
    (runs[1].directory / "launch" / "cancelled").write_text("7_1\n")
    found = [stubs.run(text, code=0, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID=str(n)) for n in (0, 1)]
    assert [len(ran.hosts) for ran in found] == [1, 0]


def test_a_job_that_is_asked_to_end_waits_until_it_has_saved(stubs, tmp_path):
    """Slurm sends SIGTERM to all, the script among them."""
    saves = f"open({str(tmp_path / 'begun')!r}, 'w'); time.sleep(0.5)\n" + _TOLD.format(code=85)
    with stubs.start(stubs.script(tmp_path / "run"), DOES=saves) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 85, out
    assert "is to be started again" in out


def test_the_engine_has_no_script_for_processes_that_are_no_whole_hosts():
    with pytest.raises(ConfigError, match="15 processes are no whole hosts of 8 chips each"):
        Slurm.Config(processes=15, per_host="chips").build().render(job_on("gpu-h100-16"))
