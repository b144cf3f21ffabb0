# SPDX-License-Identifier: Apache-2.0
"""When a step waits for its batch: the host is steps ahead of the devices, so that most of reading costs nothing.

What an input makes is measured where batches are made, from before the first step on, and compared with what the step
needs: by its operations until steps are measured, then by the time that devices have waited.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dovetail.data import Pace

from ._goodput import Goodput
from ._size import Size

_MUCH = 0.1  # Of the time spent waiting for data.
_LONG = 2.0  # Seconds of it, before there is something to say.
_LIKELY = 0.4  # Of the peak: what a step is taken to reach before it is measured.
_FOR_SURE = 2  # An input is said to be too slow if its fastest batch takes that many times as long as such a step.
_LEAST_STEP = 0.01  # Seconds of a step, at least: a small one takes time for other things than its operations.
_BATCHES = 2  # That have to be made before something is said of how fast they are made.
_SHORT = 5e-4  # Seconds; a batch that is there comes sooner.


class DataWait:
    """Tells apart the time in which devices have work from that in which they wait for a batch."""

    def __init__(self, goodput: Goodput) -> None:
        self._goodput, self._was_slow, self._is_said, self._is_measured = goodput, False, False, False
        self._asked: queue.SimpleQueue[tuple[Any, list[Any]] | None] | None = None
        self.peak: float | None = None  # Operations per second of the devices, if it is known.

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

    def advice(self, size: Size, pace: Pace, values: Mapping[str, float], what: Callable[[], str]) -> str:
        """Returns, once, what there is to do about an input that is too slow; or nothing.

        Args:
            size: of the step.
            pace: of what makes its batches.
            values: figures of steps, as far as there are some.
            what: returns what to do, if there is something.
        """
        self._is_measured = self._is_measured or "data_wait" in values
        found = self._measured(size, values) if self._is_measured else self._foreseen(size, pace)
        if self._is_said or found is None or not (done := what()):
            return ""
        self._is_said = True
        made, needed, how = found
        return f"This input makes {_short(made)} {size.unit}s/s, the step needs {_short(needed)}{how}: {done}"

    def _measured(self, size: Size, values: Mapping[str, float]) -> tuple[float, float, str] | None:
        share, rate = values.get("data_wait", 0.0), values.get(f"{size.unit}s_per_second", 0.0)
        if share < _MUCH or self.seconds() < _LONG:
            return None
        return rate, rate / max(1 - share, 0.01), ""

    def _foreseen(self, size: Size, pace: Pace) -> tuple[float, float, str] | None:
        if self.peak is None or pace.batches < _BATCHES:
            return None
        seconds = max(size.units * size.flops_per_unit / (_LIKELY * self.peak), _LEAST_STEP)
        if pace.fastest < _FOR_SURE * seconds:
            return None
        return size.units / pace.fastest, size.units / seconds, f" at {_LIKELY:.0%} of the peak"

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
