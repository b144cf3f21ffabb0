# SPDX-License-Identifier: Apache-2.0
"""Who waits for changes of runs is told of them. Nobody waits: nothing is looked at."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable

_EVERY = 1.0  # Seconds between two looks; more where a look takes long.
_SHARE = 10.0  # Times as long as a look took.
_MOST = 1_000  # Runs that are named.
_WAITING = 8  # Changes that wait for one who does not read them; then they become one.


class Changes:
    """Looks at the stamps of runs, in a thread, while somebody is subscribed."""

    def __init__(self, stamps: Callable[[], dict[str, object]], *, every: float = _EVERY) -> None:
        self._stamps, self._every = stamps, every
        self._lock = threading.Condition()
        self._waiting: list[queue.Queue[list[str]]] = []
        self.is_closed = False
        self._thread: threading.Thread | None = None

    def subscribe(self) -> "queue.Queue[list[str]]":
        """Returns where changes will be put: the ids of the runs that have changed, appeared or gone."""
        found: queue.Queue[list[str]] = queue.Queue(_WAITING)
        with self._lock:
            self._waiting.append(found)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="changes", daemon=True)
                self._thread.start()
            self._lock.notify_all()
        return found

    def unsubscribe(self, one: "queue.Queue[list[str]]") -> None:
        """Puts nothing there any more."""
        with self._lock:
            self._waiting.remove(one)

    def close(self) -> None:
        """Ends the thread, soon."""
        with self._lock:
            self.is_closed = True
            self._lock.notify_all()

    def _look(self) -> None:
        before: dict[str, object] | None = None
        took = 0.0
        while True:
            with self._lock:
                if before is not None:  # The first look is at once: from it on changes are seen.
                    self._lock.wait(max(self._every, _SHARE * took))
                if not self._waiting:
                    before = None
                    self._lock.wait_for(lambda: self._waiting or self.is_closed)
                if self.is_closed:
                    return
            start = time.monotonic()
            try:
                now = self._stamps()
            except OSError:
                now = before or {}
            took = time.monotonic() - start
            if before is not None and (changed := _changed(before, now)):
                self._tell(changed[:_MOST])
            before = now

    def _tell(self, changed: list[str]) -> None:
        with self._lock:
            for each in self._waiting:
                if each.full():  # It is slow: all that waits becomes one.
                    with contextlib.suppress(queue.Empty):
                        while True:
                            changed = sorted({*changed, *each.get_nowait()})[:_MOST]
                each.put_nowait(changed)


def _changed(before: dict[str, object], now: dict[str, object]) -> list[str]:
    """Returns the runs that are not as they were.

    >>> _changed({"a": 1, "b": 1}, {"b": 2, "c": 1, "d": 1})
    ['a', 'b', 'c', 'd']
    """
    return sorted(run for run in {*before, *now} if before.get(run) != now.get(run))
