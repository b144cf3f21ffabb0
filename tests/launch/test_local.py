# SPDX-License-Identifier: Apache-2.0
"""`dovetail launch --via local`, as users run it: real training in several processes, which are killed."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos_check import difference, orphans
from dovetail.cli import main

RUN = Path(__file__).parents[2] / "tools" / "chaos_run.py"


@contextlib.contextmanager
def launched(directory: Path, *options: str, steps: int):
    """Yields a launch that goes on meanwhile, and is ended if it is not over."""
    (directory / "control").mkdir(parents=True, exist_ok=True)
    command = [Path(sys.executable).with_name("dovetail"), "launch", f"{RUN}:run", f"steps={steps}"]
    command += [f"directory={directory / 'run'}", f"input.control={directory / 'control'}", "save_every=5", *options]
    env = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    # Programs of its own, so that what was kept is what these processes have kept.
    env |= {"XDG_CACHE_HOME": str(directory / "cache"), "JAX_DEBUG_LOG_MODULES": "jax._src.compiler"}
    with (directory / "out").open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as process:
        try:
            yield process
        finally:
            process.terminate()


def events(directory: Path, *names: str) -> list[dict]:
    file = directory / "run" / "launch" / "events.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [each for each in found if each["event"] in names]


def until(condition, process, seconds=300.0):
    """Waits until something is so, while the launch goes on."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


def checkpoints(directory: Path) -> list[Path]:
    return list((directory / "run" / "checkpoints").glob("step_*[0-9]"))


def saved(directory: Path) -> str:
    return str(directory / "run" / "checkpoints")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    """The run of two processes without faults."""
    directory = tmp_path_factory.mktemp("unbroken")
    with launched(directory, "--processes", "2", steps=40) as process:
        assert process.wait(300) == 0, (directory / "out").read_text()
    return directory


@pytest.mark.long
def test_a_run_that_was_killed_ends_with_the_bits_of_the_unbroken_one(unbroken, tmp_path):
    with launched(tmp_path, "--processes", "2", steps=40) as process:
        until(lambda: len(checkpoints(tmp_path)) > 1, process)
        os.kill(events(tmp_path, "process")[1]["pid"], signal.SIGKILL)
        assert process.wait(300) == 0, (tmp_path / "out").read_text()
    (failed,) = events(tmp_path, "failed")
    assert failed["what"] == "killed"
    assert difference(saved(tmp_path), saved(unbroken)) == []
    assert orphans(tmp_path / "run") == []
    for slot in range(2):  # Nobody had to compile the step again.
        log = (tmp_path / "run" / "launch" / f"{slot}.log").read_text()
        before, after = re.split("==== .* start 2,", log)
        assert "CACHE MISS for 'jit_step'" in before
        assert "cache hit for 'jit_step'" in after
        assert "CACHE MISS for 'jit_step'" not in after


def losses(directory: Path) -> dict[int, float]:
    records = map(json.loads, (directory / "run" / "metrics.jsonl").read_text().splitlines())
    return {each["step"]: each["loss"] for each in records if "loss" in each}


@pytest.mark.long
def test_losses_are_those_of_one_process(unbroken, tmp_path):
    (tmp_path / "control").mkdir()
    where = [f"directory={tmp_path / 'run'}", f"input.control={tmp_path / 'control'}"]
    assert main(["train", f"{RUN}:run", "steps=40", *where]) == 0
    wanted = losses(tmp_path)
    found = losses(unbroken)
    assert found.keys() == wanted.keys()
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_a_supervisor_that_dies_leaves_no_process_and_another_one_goes_on(unbroken, tmp_path):
    with launched(tmp_path, "--processes", "2", steps=40) as process:
        until(lambda: len(checkpoints(tmp_path)) > 1, process)
        (supervisor,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(supervisor), signal.SIGKILL)
        assert process.wait(300) == 0, (tmp_path / "out").read_text()
    assert "launch: the supervisor was ended by signal 9: starting another one" in (tmp_path / "out").read_text()
    assert difference(saved(tmp_path), saved(unbroken)) == []


@pytest.mark.slow
def test_sigterm_saves_and_ends_with_85_and_the_same_command_goes_on(unbroken, tmp_path):
    with launched(tmp_path, "--processes", "2", steps=40) as process:
        (tmp_path / "control" / "fault.0").write_text("slow")  # Or it is done before it has heard.
        until(lambda: checkpoints(tmp_path), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 85, (tmp_path / "out").read_text()
    with launched(tmp_path, "--processes", "2", steps=40) as process:
        assert process.wait(300) == 0, (tmp_path / "out").read_text()
    assert difference(saved(tmp_path), saved(unbroken)) == []


@pytest.mark.slow
def test_one_that_is_killed_while_it_compiles_is_noticed_at_once(tmp_path):
    with launched(tmp_path, "--processes", "2", steps=10) as process:
        until(lambda: (tmp_path / "control" / "given.1.0").exists(), process)  # The first batch: it compiles next.
        before = time.monotonic()
        os.kill(events(tmp_path, "process")[0]["pid"], signal.SIGKILL)
        until(lambda: events(tmp_path, "failed"), process)
        (failed,) = events(tmp_path, "failed")
        assert failed["what"] == "killed"
        assert failed["detected"] - before < 10  # Without a supervisor, the others would wait for a minute.
        assert process.wait(300) == 0, (tmp_path / "out").read_text()


@pytest.mark.parametrize(
    "options, said",
    [
        (["--processes", "0"], "launch: processes is 0 and spares 0, expected 1 or more, and 0."),
        (["--processes", "2", "--min-processes", "3"], "launch: min_processes is 3, expected 1 to 2"),
        (
            ["--processes", "3", "--mesh", "data=4"],
            "launch: 3 processes do not divide the 4 devices of the mesh data=4.",
        ),
        (["launch.supervision.heartbeat=0"], "supervision.heartbeat is 0"),
        (["launch.spare=1"], "Did you mean 'spares'?"),
    ],
)
def test_what_cannot_be_launched_is_one_message(capsys, options, said):
    assert main(["launch", "tiny-lm", *options]) == 2
    assert said in capsys.readouterr().err
