# SPDX-License-Identifier: Apache-2.0
"""`train`, and `eval` and `generate` of the run it made."""

import json
import os
import pty
import re
import socket
import subprocess
import sys

import jax.numpy as jnp
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.cli import main, resolve
from dovetail.parallel import parse_mesh
from support.runs import TEXT, tiny


def as_program(monkeypatch, *argv):
    """Runs the command as a program whose standard error is a terminal; returns its exit code and what that shows."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("DOVETAIL_HOST", "plain")
    with open(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["dovetail", *argv])
        patch.setattr(sys, "stderr", terminal)
        code = main()
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    return code, shown


def test_train_then_generate_from_the_directory_of_the_run(capsys, tmp_path, monkeypatch):
    (tmp_path / "held-out.txt").write_text(TEXT, "utf-8")  # A short one: the book's takes seconds each time.
    held_out = "evaluators.eval.input.dataset.source"
    small = ["model.stack.num_layers=1", "model.dim=32", "input.batch_size=2", "evaluators.sample.tokens=4"]
    small += [f"{held_out}=TextFiles", f'{held_out}.files=["{tmp_path}/held-out.txt"]']
    directory = f"directory={tmp_path / 'run'}"
    code, shown = as_program(monkeypatch, "train", "tiny-lm", "steps=2", directory, *small)
    assert code == 0
    assert "step 2/2" in capsys.readouterr().out
    phases = ("importing", "measuring the model", "initialising the parameters", "tracing", "compiling", "evaluating")
    assert sorted(phases, key=shown.index) == list(phases)  # Each is there, in this order.
    assert main(["train", str(tmp_path / "run"), "steps=3", "input.batch_size=4"]) == 2
    assert capsys.readouterr().err == (
        f"dovetail train: {tmp_path}/run: this config is not that of the run there, which has made 2 steps:\n"
        "  input.batch_size: 2 -> 4\n"
        "  Also different, but allowed:\n"
        "  steps: 2 -> 3\n"
        "  Use the config of the run, or another directory. To go on with this one all the same: --allow-change\n"
        "  (in Python: run(allow_change=True)).\n"
        "  Where only input differs: --data-change keep, restart or skip-to-step (run(data_change=...)), which says\n"
        "  what the position in the data means then.\n"
    )
    assert main(["train", str(tmp_path / "run"), "steps=3"]) == 0
    out = capsys.readouterr().out
    assert "Going on after step 2." in out
    assert "changes of the config:\n  steps: 2 -> 3\n" in out
    assert main(["train", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == "Nothing to do: 3 of 3 steps are done.\n"
    assert main(["generate", str(tmp_path / "run"), "The whale", "sampling.temperature=0.5"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("The whale")
    assert re.fullmatch(r"4 tokens, [\d,]+ a second\n", printed.err)
    assert main(["generate", str(tmp_path / "run"), "The whale", "--json", "--step", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["tokens"]) == (2, 4)
    assert found["tokens_per_second"] > 0
    assert main(["eval", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("step 3  eval/loss ")
    assert main(["eval", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"step", "eval/loss", "eval/accuracy", "eval/tokens", "sample"}
    assert found["sample"].startswith("The whale")
    assert main(["eval", str(tmp_path / "run"), "--step", "7"]) == 2
    assert "there is no step 7, only" in capsys.readouterr().err
    assert resolve(str(tmp_path / "run")).cfg.steps == 3


def test_a_sequence_longer_than_there_are_positions_is_refused_before_anything_is_written(capsys, tmp_path):
    directory = tmp_path / "run"
    assert main(["train", "gpt2-tiny", "input.seq_len=4096", f"directory={directory}"]) == 2
    assert "a sequence of 4096 tokens, but max_length is " in capsys.readouterr().err
    assert not directory.exists()


@pytest.mark.slow
def test_processes_that_refuse_a_run_say_the_same_and_none_waits(tmp_path):
    cfg = tiny(tmp_path, mesh=parse_mesh("data=2"))
    checkpoints = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints", asynchronous=False).build()
    checkpoints.save(4, {"w": jnp.ones(3)}, config=cfg)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    shared = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    shared |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "DOVETAIL_HOST": "plain"}
    command = [sys.executable, "-m", "dovetail.cli", "train", cfg.directory, "seed=3"]
    processes = [
        subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env={**shared, "JAX_PROCESS_ID": str(rank)})
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=60)[1].partition("dovetail train: ")[2] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [2, 2]
    assert said[0].startswith(f"{cfg.directory}: this config is not that of the run there, which has made 4 steps:\n")
    assert said[1] == f"{said[0]}  (Process 0 of 2 found this.)\n"


def test_a_part_that_is_named_and_not_filled_is_one_error(capsys):
    assert main(["train", "llama3-tiny", "evaluators.eval=HeldOutLoss"]) == 2
    assert "\n  evaluators.eval.input: Input.Config\n  Add" in capsys.readouterr().err
