# SPDX-License-Identifier: Apache-2.0
"""When a step waits for its batch: the host is steps ahead of the devices, so that most of reading costs nothing."""

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ._goodput import Goodput

_MUCH = 0.1  # Of the time spent waiting for data.
_LONG = 2.0  # Seconds of it, before there is something to say.
_SHORT = 5e-4  # Seconds; a batch that is there comes sooner.


class DataWait:
    """Tells apart the time in which devices have work from that in which they wait for a batch."""

    def __init__(self, goodput: Goodput) -> None:
        self._goodput, self._was_slow, self._is_said = goodput, False, False
        self._asked: queue.SimpleQueue[tuple[Any, list[Any]] | None] | None = None

    @contextlib.contextmanager
    def around(self, last: Any) -> Iterator[None]:
        """Around what gives the next batch; `last` is a result of the step that the devices work on, None if of none.

        While batches come slowly, a thread waits for the devices, and knows when they have nothing left to do.
        """
        start = time.monotonic()
        busy = last is not None and not last.is_ready()
        with self._goodput.spent("step" if busy else "data_wait") as frame:
            if busy and self._was_slow:
                self._watch(last, frame)
            yield
        self._was_slow = time.monotonic() - start > _SHORT

    def seconds(self) -> float:
        """Returns how long devices have waited for batches, in this process."""
        return self._goodput.seconds_of("data_wait")

    def advice(self, values: Mapping[str, float], unit: str, what: str) -> str:
        """Returns, once, what there is to do about an input that is too slow, from figures of steps; or nothing."""
        share, rate = values.get("data_wait", 0.0), values.get(f"{unit}s_per_second", 0.0)
        if self._is_said or not what or share < _MUCH or self.seconds() < _LONG:
            return ""
        self._is_said = True
        needed = rate / max(1 - share, 0.01)
        return f"This input makes {_short(rate)} {unit}s/s, the step could take {_short(needed)}. {what}"

    def _watch(self, last: Any, frame: list[Any]) -> None:
        if self._asked is None:
            self._asked = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(self._asked,), name="data wait", daemon=True).start()
        self._asked.put((last, frame))

    def _run(self, asked: "queue.SimpleQueue[tuple[Any, list[Any]] | None]") -> None:
        while (work := asked.get()) is not None:
            last, frame = work
            with contextlib.suppress(Exception):  # Who reads the result is told.
                last.block_until_ready()
            self._goodput.change(frame, "data_wait")
            del work, last, frame

    def close(self) -> None:
        """Ends the thread."""
        if self._asked is not None:
            self._asked.put(None)
            self._asked = None


def _short(rate: float) -> str:
    return f"{rate / 1e6:.2g} M" if rate >= 1e5 else f"{rate:,.0f}"
