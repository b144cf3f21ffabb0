# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run do together: wait for each other, and add up."""

import asyncio
import itertools
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

_numbers = itertools.count()


def next_number() -> int:
    """Returns a number that no barrier has used yet; the same in all processes if all call it equally often."""
    return next(_numbers)


def barrier(name: str) -> None:
    """Waits until all processes are here. Runs no computation on devices, so any thread may call it."""
    if jax.process_count() > 1:
        _wait(name)


def meet(name: str, seconds: int) -> bool:
    """Whether all processes come here within so many seconds, with the same name; each name can be used once."""
    if jax.process_count() == 1:
        return True
    try:
        _wait(name, timeout=seconds)
    except Exception:  # A time-out, or the end of the process that coordinates them.
        return False
    return True


def _wait(name: str, **options: Any) -> None:
    from orbax.checkpoint import v1 as ocp  # Here: it takes a while, and most commands do not need it.

    asyncio.run(ocp.multihost.sync_global_processes(name, operation_id="dovetail", **options))


def add_up(numbers: np.ndarray) -> np.ndarray:
    """Returns the sum of the numbers of all processes, in their own type. To be called where `together` may be."""
    if jax.process_count() == 1:
        return numbers
    return np.asarray(multihost_utils.process_allgather(numbers)).sum(axis=0, dtype=numbers.dtype)
