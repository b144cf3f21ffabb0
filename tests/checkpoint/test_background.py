# SPDX-License-Identifier: Apache-2.0
"""Processes that end: with a save in progress, after a failed one, and by a kill at any moment."""

import random
import textwrap

from checkpoint.helpers import assert_identical, config_in, run_python, small_state

ENDING = """
import resource, sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from checkpoint.helpers import config_in

cfg = config_in(Path(sys.argv[1]))
checkpointer = cfg.build()
state = {"w": jnp.ones((256, 256))}
checkpointer.save(1, state, config=cfg)
"""


def run_to_the_end(directory, program: str):
    """Runs a program that has started to save; a process that hangs is a failure."""
    return run_python(ENDING + textwrap.dedent(program), str(directory), timeout=45)


def test_a_program_that_ends_without_waiting_finishes_its_save(tmp_path):
    done = run_to_the_end(tmp_path, "raise SystemExit(3)")
    assert (done.returncode, done.stderr) == (3, "")
    assert config_in(tmp_path).build().steps() == [1]


def test_no_space_is_one_clear_error_and_the_process_ends(tmp_path):
    done = run_to_the_end(
        tmp_path,
        """
        from dovetail.checkpoint import CheckpointError
        from dovetail.config import ConfigError
        checkpointer.wait()
        try:
            checkpointer.save(2, {"n": np.int64(1)}, config=cfg)  # Orbax would never let the process end.
        except ConfigError as e:
            print(e)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # Of 262,144 bytes.
        checkpointer.save(2, state, config=cfg)
        try:
            checkpointer.wait()
        except CheckpointError as e:
            print(e)
        print(checkpointer.steps(), checkpointer.restore(state).step)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "this state cannot be saved:\n"
        "  'n' is of type numpy.int64, not a jax.Array: use jnp.asarray, or leave it out.\n"
        "  Nothing was written.\n"
        f"checkpoint {tmp_path}/step_2 was not saved: File too large.\n"
        "  The newest finished step is step_1.\n"
        "[1] 1\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


KILLING = """
import os, random, signal, sys, time, warnings
from pathlib import Path

warnings.simplefilter("ignore")  # About forks: this process has no threads yet, it only imports.
import jax, numpy as np, orbax.checkpoint, dovetail.checkpoint
from checkpoint.helpers import abstract, assert_identical, config_in, small_state

cfg = config_in(Path(sys.argv[1]), keep=2)


def child(say):
    checkpointer = cfg.build()
    done = checkpointer.latest() or 0
    if done:
        restored = checkpointer.restore(abstract(small_state()))
        assert restored.data_state == {"next": restored.step}
        assert_identical(restored.state, small_state(restored.step))
    say(f"restored {done}")
    for step in range(done + 1, done + 100):
        say(f"saving {step}")
        checkpointer.save(step, small_state(step), config=cfg, data_state={"next": step}, files={"vocab": b"abc"})
        checkpointer.wait()
        say(f"saved {step}")


def run(kill_after):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(lambda text: os.write(writer, (text + "\\n").encode()))
        finally:
            os._exit(1)
    os.close(writer)
    lines, saves = [], 0
    with os.fdopen(reader) as pipe:
        for line in pipe:
            lines.append(line.strip())
            saves += line.startswith("saving")
            if saves == 2:
                time.sleep(kill_after)
                os.kill(pid, signal.SIGKILL)
                saves += 1
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), lines
    return lines


for delay in sys.argv[2:]:
    print(";".join(run(float(delay))), flush=True)
"""


def test_a_kill_at_any_moment_of_a_save_leaves_the_last_finished_step(tmp_path):
    """Each process restores what the one before has left, checks every bit of it, and is killed in its second save."""
    rng = random.Random()
    delays = [rng.uniform(0, 0.12) for _ in range(5)]  # A save takes about 0.1 s here.
    done = run_python(KILLING, str(tmp_path), *map(str, delays), timeout=120)
    assert done.returncode == 0, done.stderr
    finished = 0
    for delay, line in zip(delays, done.stdout.splitlines(), strict=True):
        events = [event.split() for event in line.split(";")]
        kind, restored = events[0][0], int(events[0][1])
        assert kind == "restored", (delay, line)
        assert restored in (finished, finished + 1), (delay, line)  # A save can be whole before it is reported.
        finished = max([restored, *(int(step) for kind, step in events if kind == "saved")])
    restored = config_in(tmp_path).build().restore(small_state())
    assert restored.step in (finished, finished + 1)
    assert_identical(restored.state, small_state(restored.step))


def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path):
    rubbish = tmp_path / "step_5.tmp/arrays.orbax-checkpoint-tmp/state"
    rubbish.mkdir(parents=True)
    (rubbish / "x").write_bytes(b"half")
    cfg = config_in(tmp_path)
    with cfg.build() as checkpointer:
        assert checkpointer.steps() == []
        checkpointer.save(5, small_state(), config=cfg)
    assert [path.name for path in tmp_path.iterdir()] == ["step_5"]
