# SPDX-License-Identifier: Apache-2.0
"""What Grain does for the input: worker processes, and a thread that prepares batches ahead.

Import this module where it is used: Grain imports JAX.
"""

import functools
import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import grain
from absl import flags
from grain.experimental import ThreadPrefetchDatasetIterator

from ._packing import State
from ._spec import Batch

_Made = Iterator[tuple[Batch, dict[str, State]]]
_AHEAD = 2  # Batches that a worker prepares ahead; the thread in the main process adds its own.


class Worker:
    """Runs `make()`, which is pickled, in a process of its own, and iterates over what it yields.

    The position travels with each batch. The state that Grain would keep depends on the number of workers, so it
    stays unused.
    """

    def __init__(self, make: Callable[[], _Made]) -> None:
        if not flags.FLAGS.is_parsed():  # Grain reads flags, which exist only under `absl.app.run`.
            flags.FLAGS.mark_as_parsed()
        options = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=_AHEAD)
        self.seconds = 0.0  # That it took to make the last batch.
        self._iterator = iter(_Dataset(make).mp_prefetch(options, worker_init_fn=_stay))
        self._iterator.start_prefetch()

    def __iter__(self) -> "Worker":
        return self

    def __next__(self) -> tuple[Batch, dict[str, State]]:
        batch, told = next(self._iterator)
        states, self.seconds = json.loads(told)
        return batch, states

    def close(self) -> None:
        """Ends the process."""
        self._iterator.close()


def _stay(index: int, count: int) -> None:
    """Has a worker ignore SIGTERM, which some engines send to all of a job: the main process saves, and ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _Dataset(grain.IterDataset[Any]):
    def __init__(self, make: Callable[[], _Made]) -> None:
        super().__init__()
        self._make = make

    def __iter__(self) -> "_Iterator":
        return _Iterator(self._make)


class _Iterator(grain.DatasetIterator[Any]):
    def __init__(self, make: Callable[[], _Made]) -> None:
        super().__init__()
        self._make = make

    @functools.cached_property
    def _made(self) -> _Made:
        return self._make()

    def __next__(self) -> tuple[Batch, str]:
        begun = time.perf_counter()
        batch, states = next(self._made)
        return batch, json.dumps([states, time.perf_counter() - begun])

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("a worker starts at a position and is replaced to go to another")


def prefetch(batches: Any, ahead: int) -> Any:
    """Returns an iterator that prepares `ahead` batches in a thread; its state is that of the batches it has given."""
    return ThreadPrefetchDatasetIterator(batches, ahead)
