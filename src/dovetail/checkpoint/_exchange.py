# SPDX-License-Identifier: Apache-2.0
"""What processes give each other without a file: small things up a tree to the first, and bytes from it to all."""

from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from ._processes import coordinator

_FAN_IN = 16  # Children of a process in the tree: ten thousand processes are four levels.
_PATIENCE_MS = 60_000  # One wait; there is another as long as all processes live, which the coordinator watches.


def gather_to_first(name: str, mine: bytes, join: Callable[[bytes, bytes], bytes]) -> bytes:
    """Returns, in the first process, what all have brought, joined in any order; in the others, a part of it.

    Runs no computation on devices, so any thread may call it. Each process reads from a few others, however many there
    are; the messages lie in the coordinator.

    Args:
        name: the same in all processes, and used once.
    """
    rank, count = jax.process_index(), jax.process_count()
    for child in _children(rank, count):
        key = f"dovetail/{name}/{child}"
        mine = join(mine, _awaited(key))
        coordinator().key_value_delete(key)
    if rank:
        coordinator().key_value_set_bytes(f"dovetail/{name}/{rank}", mine)
    return mine


def _children(rank: int, count: int) -> Iterator[int]:
    yield from range(rank * _FAN_IN + 1, min(count, (rank + 1) * _FAN_IN + 1))


def _awaited(key: str) -> bytes:
    while True:
        try:
            return coordinator().blocking_key_value_get_bytes(key, _PATIENCE_MS)
        except Exception as e:
            if "DEADLINE_EXCEEDED" not in str(e):
                raise


def from_first(data: bytes | None) -> bytes:
    """Returns the bytes that the first process has brought. To be called where `together` may be."""
    if jax.process_count() == 1:
        assert data is not None
        return data
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data or b""))))
    padded = np.zeros(1 << (size - 1).bit_length() if size else 1, np.uint8)  # Few sizes: each is a program to compile.
    if data:
        padded[:size] = np.frombuffer(data, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded))[:size].astype(np.uint8).tobytes()
