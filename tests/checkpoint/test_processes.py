# SPDX-License-Identifier: Apache-2.0
"""Two processes with two devices each save one state, find damage together and fall back together."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

from dovetail.checkpoint._processes import add_up, worst

PROGRAM = """
import sys
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


cfg = config_in(directory, keep=2, on_corruption="fallback")
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
try:
    checkpointer.save(4, {"w": jax.numpy.ones(3)}, config=cfg)
except ValueError as e:
    assert "'w' is on the devices of one process only: give it a NamedSharding over the mesh." in str(e)
try:
    checkpointer.save(3, state, config=cfg)
except Exception as e:
    print(str(e).splitlines()[0])
"""


def test_two_processes_save_and_restore_together(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "JAX_NUM_CPU_DEVICES": "2"}
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
    last = [out.splitlines()[-1] for out, _ in outputs]
    assert last == [
        f"checkpoint {tmp_path}/step_3 is not saved: it is there already.",
        f"checkpoint {tmp_path}: another process failed; see its log.",
    ]


def test_alone_a_process_agrees_with_itself():
    assert worst(2) == 2
    np.testing.assert_array_equal(add_up(np.array([1, 2], np.uint32)), [1, 2])
