# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run do together: wait for each other, and add up."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_LONG_MS = 3_600_000  # The first process finishes a step and deletes old ones; a dead process is noticed otherwise.
_numbers = itertools.count()


def next_number() -> int:
    """Returns a number that no barrier has used yet; the same in all processes if all call it equally often."""
    return next(_numbers)


def barrier(name: str) -> None:
    """Waits until all processes are here. Runs no computation on devices, so any thread may call it."""
    if jax.process_count() > 1:
        coordinator().wait_at_barrier(f"dovetail/{name}", _LONG_MS)


def meet(name: str, seconds: int) -> bool:
    """Whether all processes come here within so many seconds, with the same name; each name can be used once."""
    if jax.process_count() == 1:
        return True
    try:
        coordinator().wait_at_barrier(f"dovetail/{name}", seconds * 1000)
    except Exception:  # A time-out, or the end of the process that coordinates them.
        return False
    return True


def coordinator() -> Any:
    """Returns the service through which the processes of a run find each other; JAX has no public name for it."""
    return jax._src.distributed.global_state.client  # pyright: ignore


def add_up(numbers: np.ndarray) -> np.ndarray:
    """Returns the sum of the numbers of all processes, in their own type. To be called where `together` may be.

    They are added on their way: no process gets those of all.
    """
    if jax.process_count() == 1:
        return numbers
    first = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([first[process] for process in sorted(first)]), ("processes",))
    each = NamedSharding(mesh, P("processes"))
    spread = jax.make_array_from_process_local_data(each, numbers[None], (len(first), *numbers.shape))
    with jax.set_mesh(mesh):
        total = jax.jit(_sum, out_shardings=NamedSharding(mesh, P()))(spread)
    return np.asarray(total.addressable_data(0))


def _sum(x: Array) -> Array:
    return jnp.sum(x, axis=0, dtype=x.dtype)
