# SPDX-License-Identifier: Apache-2.0
"""What is saved, restored, written and read says how far it is: in the end, all of it, and no more."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.checkpoint import Checkpointer
from dovetail.checkpoint.hf import OutTensor, write_tensors
from dovetail.config import ConfigBase
from dovetail.progress import phase
from support.counts import counted


def test_saving_and_restoring_count_each_byte_once(tmp_path):
    state = {"a": jnp.arange(3000, dtype=jnp.float32), "b": {"c": jnp.ones((7, 5), jnp.bfloat16)}}
    size, found = sum(x.nbytes for x in jax.tree.leaves(state)), dict[str, list[tuple[float, float | None, str]]]()

    def told(name, count):
        found.setdefault(name, []).append((count.done, count.total, count.unit))

    with Checkpointer.Config(directory=str(tmp_path / "run")).build() as checkpointer, counted(told):
        with phase("saving"):
            checkpointer.save(1, state, config=ConfigBase())
            checkpointer.wait()
        with phase("restoring"):
            restored = checkpointer.restore(state)
    jax.tree.map(np.testing.assert_array_equal, restored.state, state)
    assert found["saving"][-1] == (size, size, "bytes")
    assert found["restoring"][-1] == (size, size, "bytes")
    assert all(done <= size for steps in found.values() for done, _, _ in steps)


def test_publishing_counts_the_bytes_of_all_tensors(tmp_path):
    tensors = [
        OutTensor(f"t{size}", (size,), np.dtype(np.float32), lambda size=size: np.zeros(size, np.float32))
        for size in (3, 5, 8)
    ]
    found = []
    with counted(lambda name, count: found.append((count.done, count.total))), phase("writing"):
        write_tensors(tmp_path, tensors, max_shard_bytes=33)
    assert found == [(12, 64), (32, 64), (64, 64)]
