# SPDX-License-Identifier: Apache-2.0
"""Two processes with two devices each save one state, find damage together, fall back and fail together."""

import os
import socket
import subprocess
import sys

import numpy as np

from checkpoint.helpers import python_path
from dovetail.checkpoint._processes import add_up

PROGRAM = """
import os
import resource
import sys
import time
from pathlib import Path

import jax

rank, port, directory = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
address = f"127.0.0.1:{port}"
jax.distributed.initialize(
    address, 2, rank, coordinator_bind_address=address, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10
)
import numpy as np
from checkpoint.helpers import config_in, files_of, flip, mesh
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import NamedSharding, PartitionSpec as P

DATA = {"w": np.random.default_rng(0).normal(size=(64, 512)).astype(np.float32), "n": np.int32(7)}


def on(mesh, **specs):
    return {name: NamedSharding(mesh, P(*spec)) for name, spec in specs.items()}


def make(shardings):
    return {n: jax.make_array_from_callback(x.shape, shardings[n], lambda i, x=x: x[i]) for n, x in DATA.items()}


def abstract(shardings):
    return {n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardings[n]) for n, x in DATA.items()}


def check(state):
    for name, leaf in state.items():
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, DATA[name][shard.index])


cfg = config_in(directory, keep=2)
checkpointer = cfg.build()
state = make(on(mesh(4), w=("a",), n=()))
for step in (1, 2, 3):
    checkpointer.save(step, state, config=cfg, data_state={"next": step})
checkpointer.wait()
assert checkpointer.steps() == [2, 3], checkpointer.steps()
grid = abstract(on(mesh(2, 2), w=("b", "a"), n=()))
restored = checkpointer.restore(grid)
assert (restored.step, restored.data_state) == (3, {"next": 3})
check(restored.state)

if rank == 0:
    big = [file for file in files_of(directory / "step_3") if file.stat().st_size > 50_000]
    assert len(big) == 2, big  # One of each process.
    flip(big[1], 8 * 30_000)
sync_global_devices("damaged")
restored = checkpointer.restore(grid)
assert (restored.step, list(restored.skipped)) == (2, [3])
check(restored.state)
checkpointer.save(3, state, config=cfg)
checkpointer.wait()
assert checkpointer.restore(grid).step == 3

def refused(work):
    try:
        work()
    except Exception as e:
        print(f"{type(e).__name__}: {e}".replace("\\n", "|"), flush=True)


refused(lambda: checkpointer.save(4, {"w": jax.numpy.ones(3)}, config=cfg))
refused(lambda: checkpointer.save(3, state, config=cfg))

# One process has used up its state.
mine = make(on(mesh(4), w=("a",), n=()))
if rank == 1:
    mine["n"].delete()
refused(lambda: checkpointer.save(4, mine, config=cfg))

# One process cannot write its arrays, in the background.
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank == 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
checkpointer.save(4, state, config=cfg)
refused(checkpointer.wait)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
checkpointer.save(4, state, config=cfg)
checkpointer.wait()

# One process sees the directory as it was, as network file systems show it.
if rank == 1:
    from dovetail.checkpoint import _store_posix

    _store_posix.finished_steps = lambda directory: [3]
assert checkpointer.latest() == 4
assert checkpointer.restore(grid).step == 4

# A thread of Orbax still waits for the failed save, for minutes, so the processes end without it; the coordinator last.
sys.stdout.flush()
left = directory / "left"
if rank == 1:
    left.touch()
    os._exit(0)
while not left.exists():
    time.sleep(0.02)
time.sleep(0.2)
os._exit(0)
"""


def test_two_processes_save_and_restore_together(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    env = {**os.environ, "PYTHONPATH": python_path(), "JAX_NUM_CPU_DEVICES": "2"}
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen([*command, str(rank), port, str(tmp_path)], stdout=-1, stderr=-1, text=True, env=env)
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    said = [[line for line in out.splitlines() if "Error: " in line] for out, _ in outputs]
    first, second = "|  (Process 0 of 2 found this.)", "|  (Process 1 of 2 found this.)"
    cannot, nothing = "ConfigError: this state cannot be saved:|  ", "|  Nothing was written."
    alone = f"{cannot}'w' is on the devices of one process only: give it a NamedSharding over the mesh.{nothing}"
    there = f"ConfigError: checkpoint {tmp_path}/step_3 is not saved: it is there already.|  Restore the newest step, "
    there += "call discard_after to go back to an older one, or use another directory."
    used = f"{cannot}'n' was donated or deleted: save the state that the step returned.{nothing}"
    full = f"CheckpointError: checkpoint {tmp_path}/step_4 was not saved: File too large.|  "
    full += "The newest finished step is step_3."
    assert said[0] == [alone, there, used + second, full + second]
    assert said[1] == [alone + first, there + first, used, full]


def test_alone_a_process_agrees_with_itself():
    np.testing.assert_array_equal(add_up(np.array([1, 2], np.uint32)), [1, 2])
