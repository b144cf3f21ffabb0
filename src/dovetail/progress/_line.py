# SPDX-License-Identifier: Apache-2.0
"""A line that says what a program is doing, and for how long."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TextIO

from ._phase import Watcher, watching

SHORT = 0.8  # Seconds; what is over by then is not worth a line that stays.
_TICK = 0.1  # Seconds between two looks at the clock.
_AGAIN = 60.0  # Seconds between two lines on the same phase, without a terminal.
_ERASE = "\r\x1b[2K"


class _Running(NamedTuple):
    name: str
    start: float


class Line(Watcher):
    """In a terminal a line that is written over and goes away; elsewhere a line now and then.

    What took longer than a moment leaves a line that says how long.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._live = stream.isatty()
        self._lock = threading.Lock()
        self._running: list[_Running] = []
        self._said = 0.0  # When the innermost phase was last named, without a terminal; 0: not yet.

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the phases inside."""
        done = threading.Event()

        def tick() -> None:
            while not done.wait(_TICK):
                self.tick()

        thread = threading.Thread(target=tick, name="progress", daemon=True)
        thread.start()
        try:
            with watching(self):
                yield
        finally:
            done.set()
            thread.join()

    def started(self, name: str) -> None:
        with self._lock:
            self._running.append(_Running(name, self._clock()))
            self._said = 0.0
            self._show()

    def ended(self, name: str, seconds: float | None) -> None:
        with self._lock:
            self._running.pop()
            if self._live:
                self._write(_ERASE)
            if seconds is not None and seconds >= SHORT:
                self._write(f"{name} took {duration(seconds)}\n")
            self._said = 0.0
            self._show()

    def tick(self) -> None:
        """Brings what is shown up to date."""
        with self._lock:
            self._show()

    def _show(self) -> None:
        if not self._running:
            return
        name, start = self._running[-1]
        now = self._clock()
        if self._live:
            self._write(f"{_ERASE}{name} ... {duration(now - start) if now - start >= SHORT else ''}".rstrip(" "))
        elif now - start >= SHORT and not self._said:
            self._write(f"{name} ...\n")
            self._said = now
        elif self._said and now - self._said >= _AGAIN:
            self._write(f"{name} ... {duration(now - start)}\n")
            self._said = now

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # Nobody reads on: what the program is for goes on.
            self._stream.write(text)
            self._stream.flush()


def duration(seconds: float) -> str:
    """Returns a time as a person says it.

    >>> duration(1.234), duration(12.3), duration(125.0)
    ('1.2 s', '12 s', '2 min 5 s')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes >= 2 else f"{round(seconds)} s"
