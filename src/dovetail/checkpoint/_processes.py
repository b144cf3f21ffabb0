# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run do together: wait for each other, and agree on what went wrong."""

import asyncio
import itertools

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

_numbers = itertools.count()


def is_primary() -> bool:
    """Whether this process writes what is written once."""
    return jax.process_index() == 0


def next_number() -> int:
    """Returns a number that no barrier has used yet; the same in all processes if all call it equally often."""
    return next(_numbers)


def barrier(name: str) -> None:
    """Waits until all processes are here. Runs no computation on devices, so any thread may call it."""
    if jax.process_count() > 1:
        asyncio.run(ocp.multihost.sync_global_processes(name, operation_id="dovetail"))


def worst(code: int) -> int:
    """Returns the highest of the numbers of all processes. To be called from the thread that runs the training step."""
    return code if jax.process_count() == 1 else int(np.max(multihost_utils.process_allgather(np.array(code))))


def add_up(numbers: np.ndarray) -> np.ndarray:
    """Returns the sum of the numbers of all processes, in their own type. Same thread as for `worst`."""
    if jax.process_count() == 1:
        return numbers
    return np.asarray(multihost_utils.process_allgather(numbers)).sum(axis=0, dtype=numbers.dtype)
