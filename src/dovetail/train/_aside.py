# SPDX-License-Identifier: Apache-2.0
"""Does what may be slow, as writing to a server, in a thread of its own, in order."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from ._observer import outside

_MOST = 10_000  # Pieces of work that wait; what comes then is lost, and said.
_SECONDS = 60.0  # That the end of a run waits for what is left.


class Aside:
    """One thread, and what waits for it. The first error is raised in whoever gives it the next piece of work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.Queue[Callable[[], Any] | None] = queue.Queue(_MOST)
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                with outside():
                    work()
            except OSError as e:
                self._error = self._error or e

    def do(self, work: Callable[[], Any]) -> None:
        """Has it done, some time."""
        try:
            self._work.put_nowait(work)
        except queue.Full:
            self._error = self._error or OSError(f"{_MOST:,} things wait to be written, and no more are taken")
        self._raise()

    def wait(self) -> None:
        """Waits until all of it is done, for a while."""
        done = threading.Event()
        self.do(done.set)
        if not done.wait(_SECONDS):
            raise OSError(f"{self._name} has not answered within {_SECONDS:.0f} s")
        self._raise()

    def close(self) -> None:
        """Waits for what is left, for a while."""
        try:
            self._work.put(None, timeout=_SECONDS)
            self._thread.join(_SECONDS)
        except queue.Full:
            pass
        if self._thread.is_alive():
            raise OSError(f"{self._name} has not taken all of it within {_SECONDS:.0f} s")
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
