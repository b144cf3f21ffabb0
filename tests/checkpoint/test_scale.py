# SPDX-License-Identifier: Apache-2.0
"""What a process does to save and restore does not grow with the number of processes: files are counted, and bytes.

All of it is done by Python, so that audit hooks and counting wrappers see each operation; no other library opens files.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpoint.helpers import python_path

MEGA = 1 << 20
SHARDED, REPLICATED = 4 * MEGA, 8 * MEGA  # Bytes; each of 8 processes has a megabyte of the replicated ones.

PROGRAM = """
import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import jax

rank, count, port, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, count, rank, coordinator_bind_address=address)
import numpy as np
from checkpoint.helpers import config_in
from dovetail.checkpoint._step_files import LocalFiles
from jax.sharding import NamedSharding, PartitionSpec as P

counts = Counter()


def is_ours(path):  # The lease on the directory is renewed now and then, in a thread of its own.
    return os.fspath(path).startswith(directory) and not Path(path).name.startswith((".lease", ".draft"))


def audit(event, args):
    if (event == "open" or event.startswith("os.")) and threading.current_thread().name != "lease":
        if isinstance(args[0], (str, os.PathLike)) and is_ours(args[0]):
            counts[event] += 1


def counted(name):
    real = getattr(os, name)

    def call(*args, **kwargs):
        is_lease = threading.current_thread().name.startswith("lease")
        counts[name] += not is_lease if isinstance(args[0], int) else is_ours(args[0])
        return real(*args, **kwargs)

    setattr(os, name, call)


sys.addaudithook(audit)
for name in ("stat", "lstat", "fstat", "fsync"):
    counted(name)
real_read, real_write = LocalFiles.read_into, LocalFiles.write


def read_into(self, name, offset, out):
    got = real_read(self, name, offset, out)
    counts["bytes read"] += got if not name.endswith(".json") else 0
    return got


def write(self, name, pieces):
    def seen():
        for piece in pieces:
            counts["bytes written"] += len(piece) if not name.endswith(".json") else 0
            yield piece

    real_write(self, name, seen())


LocalFiles.read_into, LocalFiles.write = read_into, write
devices = jax.make_mesh((count,), ("a",))
spread, everywhere = NamedSharding(devices, P("a")), NamedSharding(devices, P())
DATA = {
    "sharded": (np.arange(int(sys.argv[5]) // 4, dtype=np.float32), spread),
    "replicated": (np.arange(int(sys.argv[6]) // 4, dtype=np.float32)[::-1], everywhere),
    "small": (np.arange(3, dtype=np.int32), everywhere),
}
state = {n: jax.make_array_from_callback(x.shape, s, lambda i, x=x: x[i]) for n, (x, s) in DATA.items()}
wanted = {n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for n, x in state.items()}
cfg = config_in(Path(directory), keep=None)
found = {}
with cfg.build() as checkpointer:
    for step in (1, 2):  # What the first one does once is not counted.
        counts.clear()
        checkpointer.save(step, state, config=cfg)
        checkpointer.wait()
    found["save"] = dict(counts)
    counts.clear()
    restored = checkpointer.restore(wanted).state
    found["restore"] = dict(counts)
for name, (data, _) in DATA.items():
    for shard in restored[name].addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), data[shard.index])
print("FOUND", json.dumps(found), flush=True)
"""


def operations(count: int, directory: Path) -> list[dict[str, dict[str, int]]]:
    """Returns what each of so many processes has done to files, by save and restore."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    env = {**os.environ, "PYTHONPATH": python_path(), "JAX_NUM_CPU_DEVICES": "1"}
    sizes = [str(SHARDED), str(REPLICATED)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(count), port, str(directory), *sizes],
            stdout=-1,
            stderr=-1,
            text=True,
            env=env,
        )
        for rank in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=50 + 30 * count) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * count, outputs
    lines = [next(line for line in out.splitlines() if line.startswith("FOUND ")) for out, _ in outputs]
    return [json.loads(line.removeprefix("FOUND ")) for line in lines]


def check(count: int, found: list[dict[str, dict[str, int]]], alone: dict[str, Any]) -> None:
    files = [{phase: dict(each[phase]) for phase in each} for each in found]
    data = [[each["save"].pop("bytes written", 0), each["restore"].pop("bytes read", 0)] for each in files]
    # The first process does what one does alone; the others less, and all the same.
    assert files[0] == alone
    # Of a save: the bytes and their sums. Of a restore: the same two files.
    for other in files[1:]:
        assert other == {"save": {"open": 2, "fsync": 2}, "restore": {"stat": 2, "open": 2, "fstat": 2}}
    small = 12
    assert sum(written for written, _ in data) == SHARDED + REPLICATED + small
    assert sum(read for _, read in data) == SHARDED + REPLICATED + small
    for written, read in data:
        assert abs(written - (SHARDED + REPLICATED) / count) <= 64
        assert read == written


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process does by itself."""
    (found,) = operations(1, tmp_path_factory.mktemp("one"))
    assert found["save"].pop("bytes written") == found["restore"].pop("bytes read") == SHARDED + REPLICATED + 12
    return found


def test_two_processes_do_each_no_more_than_one_and_half_the_bytes(alone, tmp_path):
    print(alone)
    check(2, operations(2, tmp_path), alone)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 8])
def test_more_processes_do_each_no_more_than_one_and_less_bytes(count, alone, tmp_path):
    check(count, operations(count, tmp_path), alone)
