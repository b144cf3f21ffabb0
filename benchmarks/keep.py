# SPDX-License-Identifier: Apache-2.0
"""How long a step is held up when its state is kept in the memory of hosts, and how long the rest takes meanwhile.

    python benchmarks/keep.py [MEGABYTES]

Prints the shortest and the median time of ten keeps, in milliseconds, to the memory of this host and of one more, each
served by a process of its own as by an agent, and for comparison a plain copy of as many bytes by NumPy.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from _report import counted, program

from dovetail.blobs import MEMORY, SLOT, SPARES, TOKEN
from dovetail.checkpoint import Checkpointer, Tiers
from dovetail.config import ConfigBase

_HOST = """
import sys
from dovetail.blobs import Memory, Server
print(Server(Memory(), host="127.0.0.1", token="t").address, flush=True)
sys.stdin.read()
"""


def main(megabytes: int) -> None:
    """Measures, and prints."""
    hosts = [subprocess.Popen([sys.executable, "-c", _HOST], stdin=-1, stdout=-1, text=True) for _ in range(2)]
    own, other = (host.stdout.readline().strip() if host.stdout else "" for host in hosts)
    os.environ |= {SLOT: "0", MEMORY: own, TOKEN: "t", SPARES: json.dumps({"1": other})}
    leaves, rows = 30, megabytes * 1_000_000 // 30 // 4096
    state = {f"leaf{i}": jnp.full((rows, 1024), i, jnp.float32) for i in range(leaves)}
    store = Checkpointer.Config(directory="/nonexistent").build()
    tiers: Tiers = Tiers.Config(memory_every=1).build(store=store, run="")
    tiers.look()
    source = np.zeros(leaves * rows * 1024, np.float32)
    target = np.zeros_like(source)
    blocked, whole, copied = list[float](), list[float](), list[float]()

    def keep(step: int) -> None:
        tiers.keep(step, state, position={}, config=ConfigBase())

    for step in counted("keeping", range(12), "steps"):
        jax.block_until_ready(state)
        copied.append(_milliseconds(lambda: np.copyto(target, source)))
        start = time.perf_counter()
        blocked.append(_milliseconds(functools.partial(keep, step)))
        tiers.close()
        whole.append((time.perf_counter() - start) * 1e3)
    size = source.nbytes / 1e6
    for name, times in (("copy of as many bytes", copied), ("step held up", blocked), ("until kept twice", whole)):
        print(f"{size:.0f} MB, {name}: {min(times[2:]):.1f} ms, median {statistics.median(times[2:]):.1f} ms")
    for host in hosts:
        host.kill()


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    program(lambda: main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
