# SPDX-License-Identifier: Apache-2.0
"""Small states on small meshes, and what it means that two of them are the same."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dovetail.checkpoint import Checkpointer

Auto = AxisType.Auto


def mesh(*sizes: int, axis_type: AxisType = Auto) -> jax.sharding.Mesh:
    """Returns a mesh of the first devices, with axes a, b, ..."""
    return jax.make_mesh(
        sizes, tuple("abc"[: len(sizes)]), (axis_type,) * len(sizes), devices=jax.devices()[: np.prod(sizes)]
    )


def sharded(x: Any, *spec: Any, on: jax.sharding.Mesh) -> jax.Array:
    """Puts an array on a mesh."""
    return jax.device_put(x, NamedSharding(on, P(*spec)))


def small_state(seed: int = 0) -> dict[str, Any]:
    """Returns 4 leaves of different kinds, one of them sharded over 8 devices."""
    weight = np.random.default_rng(seed).normal(size=(16, 8)).astype(np.float32)  # In NumPy: nothing to compile.
    return {
        "params": {
            "ffn": {
                "weight": sharded(weight, "a", on=mesh(8)),
                "bias": jnp.asarray(weight[0].astype(jnp.bfloat16)),
            }
        },
        "step": jnp.asarray(np.int32(seed)),
        "key": jax.random.wrap_key_data(jnp.asarray(np.array([1, seed], np.uint32))),
    }


def abstract(state: Any) -> Any:
    """Returns what to restore, where the state is."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def assert_identical(got: Any, want: Any) -> None:
    """Asserts that two trees have the same structure, dtypes and bits."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bits(a) == bits(b)


def bits(x: jax.Array) -> bytes:
    """Returns the bits of an array."""
    is_keys = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_keys else x).tobytes()


def config_in(directory: Path | str, **fields: Any) -> Checkpointer.Config:
    """Returns the config of a checkpointer; also the config that the tests save."""
    return Checkpointer.Config(directory=str(directory), **fields)


def save_steps(directory: Path | str, *steps: int, **fields: Any) -> Checkpointer:
    """Saves `small_state(step)` for each step and waits."""
    cfg = config_in(directory, **fields)
    checkpointer = cfg.build()
    for step in steps:
        checkpointer.save(step, small_state(step), config=cfg, data_state={"next": step}, files={"vocab": b"a b c"})
    checkpointer.wait()
    return checkpointer


def files_of(path: Path) -> list[Path]:
    """Returns all files of a step, sorted."""
    return sorted(file for file in path.rglob("*") if file.is_file())


def listed(directory: Path) -> list[str]:
    """Returns what is in a directory, but for the note of who holds it."""
    return sorted(name for name in os.listdir(directory) if not name.startswith(".lease-"))


def flip(file: Path, bit: int) -> None:
    """Changes one bit of a file."""
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def run_python(program: str, *args: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own, with the settings of the tests."""
    return subprocess.run(
        [sys.executable, "-c", program, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": python_path(), **env},
    )


def start_python(program: str, *args: str, **env: str) -> "subprocess.Popen[str]":
    """Starts a program in a process of its own, with the settings of the tests; it may be killed."""
    settings = {**os.environ, "PYTHONPATH": python_path(), "JAX_NUM_CPU_DEVICES": "8", **env}
    command = [sys.executable, "-c", program, *args]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings
    )


def python_path() -> str:
    """Returns where a new process finds the modules of the tests, and what this one was told."""
    return os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
