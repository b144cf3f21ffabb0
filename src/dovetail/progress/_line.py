# SPDX-License-Identifier: Apache-2.0
"""A line that says what a program is doing, how far it is, and for how long."""

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from ._line_text import SHORT, Running, duration, line
from ._phase import Count, Watcher, is_quiet, quiet, watcher, watching

_TICK = 0.1  # Seconds between two looks at the clock.
_AGAIN = 10.0  # Seconds between two lines on the same phase, without a terminal.
_WIDTH = 80  # Columns of a terminal that does not say how many it has.
_SPARE = 3  # Columns that stay free: what a terminal shows of Ctrl-C must not begin another line.
_ERASE = "\r\x1b[2K"


class Line(Watcher):
    """In a terminal a line that is written over and goes away; elsewhere a line now and then.

    What took longer than a moment leaves a line that says how long, unless it is a part of what counts.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self.is_live = is_terminal(stream)
        self._lock = threading.RLock()
        self._running: list[Running] = []
        self._said: tuple[Count | None, float] = None, 0.0  # What was last named without a terminal, and when.
        self._shown = ""  # What is on the line of a terminal.
        self._is_over = False

    @contextlib.contextmanager
    def shown(self, every: float = _TICK) -> Iterator[None]:
        """Shows the phases inside; looks at the clock every so many seconds."""
        done = threading.Event()

        def tick() -> None:
            while not done.wait(every):
                self.tick()

        thread = threading.Thread(target=tick, name="progress", daemon=True)
        thread.start()
        try:
            with watching(self):
                yield
        finally:
            done.set()
            thread.join()
            self.end()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Takes the line away while somebody else writes."""
        with self._lock:
            self._draw("")
            yield

    def end(self) -> None:
        """Takes the line away, for good."""
        with self._lock:
            self._draw("")
            self._is_over = True

    def started(self, name: str) -> None:
        with self._lock:
            self._running.append(Running(name, self._clock(), Count()))
            self._show()

    def counts(self, count: Count) -> None:
        with self._lock:
            self._running[-1] = dataclasses.replace(self._running[-1], count=count)

    def ended(self, name: str, seconds: float | None) -> None:
        with self._lock:
            last = max(place for place, each in enumerate(self._running) if each.name == name)
            del self._running[last]
            is_part = any(each.count.total is not None for each in self._running)
            if seconds is not None and seconds >= SHORT and not is_part:
                self._draw("")
                self._write(f"{name} took {duration(seconds)}\n")
            if not self._running:
                self._draw("")
            self._show()

    def tick(self) -> None:
        """Brings what is shown up to date."""
        with self._lock:
            self._show()

    def _show(self) -> None:
        if not self._running:
            return
        now = self._clock()
        if self.is_live:
            self._draw(line(self._running, now, self._width() - _SPARE))
            return
        # Parts of what counts have no lines of their own: it has one now and then, which names them.
        head = next((each for each in self._running if each.count.total is not None), self._running[-1])
        said, at = self._said
        is_first = said is not head.count
        if now - head.start < SHORT or (not is_first and now - at < _AGAIN):
            return
        is_plain = is_first and head.count.total is None
        self._write(f"{head.name} ...\n" if is_plain else f"{line(self._running, now)}\n")
        self._said = head.count, now

    def _width(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self._stream.fileno()).columns or _WIDTH
        return _WIDTH

    def _draw(self, text: str) -> None:
        """Puts a text on the line of a terminal, in place of what is there."""
        if self.is_live and text != self._shown and not self._is_over:
            self._write(f"{_ERASE}{text}")
            self._shown = text

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # Nobody reads on: what the program is for goes on.
            self._stream.write(text)
            self._stream.flush()


def is_terminal(stream: TextIO) -> bool:
    """Whether a line on it can be written over."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


@contextlib.contextmanager
def showing(*, silent: bool = False, every: float = _TICK) -> Iterator[Line | None]:
    """Shows on standard error how far the phases inside are; of several processes, the first one does.

    Args:
        silent: show nothing; then whoever shows progress in another way does not, either.
        every: so many seconds the line is brought up to date, where that must not disturb what is measured.
    """
    errors: TextIO | None = sys.stderr  # None if it was closed.
    if silent or errors is None or os.environ.get("JAX_PROCESS_ID", "0") not in ("", "0"):
        with quiet() if silent else contextlib.nullcontext():
            yield None
        return
    with _copy(errors) as stream:
        shown = Line(stream)
        with shown.shown(every):
            yield shown


@contextlib.contextmanager
def _copy(errors: TextIO) -> Iterator[TextIO]:
    """Yields a copy of standard error: compilers write to it by themselves, so it is closed while they run.

    In a notebook, or where something else stands in its place, there is nothing to copy.
    """
    try:
        number = os.dup(errors.fileno())
    except (OSError, ValueError):
        yield errors
        return
    with open(number, "w", encoding="utf-8", errors="replace") as stream:
        yield stream


def note(text: str, *, always: bool = False) -> None:
    """Writes to standard error about how it goes, above the line of progress if there is one.

    Args:
        always: also where nobody wants to see how far it is: something is wrong, or somebody has asked.
    """
    shown = watcher()
    with shown.away() if isinstance(shown, Line) else contextlib.nullcontext():
        if always or not is_quiet():
            print(text, file=sys.stderr, flush=True)
