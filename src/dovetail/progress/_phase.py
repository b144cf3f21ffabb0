# SPDX-License-Identifier: Apache-2.0
"""Phases: parts of a program that take a while, with a name. Who runs through them does not know who watches."""

import abc
import contextlib
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar


class Count:
    """How far a phase is. Who works says so, from any thread; who watches reads it when it likes."""

    def __init__(self, total: float | None = None, unit: str = "", done: float = 0) -> None:
        self.total = total  # None: nobody knows.
        self.unit = unit  # Of what is counted, as in "rows"; "bytes" are shown as a person says them.
        self.done = done
        self.first = done  # What was done before: it says nothing about the pace.
        self.note = ""  # More to say, as a rate.
        self._lock = threading.Lock()

    def begin(self, total: float | None, unit: str = "", done: float = 0) -> None:
        """Counts something else from here on."""
        with self._lock:
            self.total, self.unit, self.done, self.first = total, unit, done, done

    def advance(self, by: float = 1) -> None:
        """So much more is done."""
        with self._lock:
            self.done += by

    def left(self, seconds: float) -> float | None:
        """Returns how many seconds are to go, at the pace of those so far; None if that is not known."""
        done = self.done - self.first
        return None if self.total is None or done <= 0 else seconds * max(self.total - self.done, 0) / done


class Watcher(abc.ABC):
    """The interface. Phases may lie in each other."""

    @abc.abstractmethod
    def started(self, name: str) -> None:
        """A phase has begun."""

    @abc.abstractmethod
    def ended(self, name: str, seconds: float | None) -> None:
        """The innermost phase has ended; None: by an error."""

    # Who does not care about the rest need not say so.

    def counts(self, count: Count) -> None:  # noqa: B027
        """The phase that has just begun says here how far it is."""

    def begun(self, step: int) -> None:  # noqa: B027
        """A step was handed to the devices."""

    def advanced(self, done: int, total: int, waited: float) -> None:  # noqa: B027
        """So many steps are done; in all, the host has waited so many seconds for the devices."""

    def failed(self, error: BaseException) -> None:  # noqa: B027
        """The work has met an error that ends it; it may yet try to save what there is."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_supervisors: ContextVar[tuple[Watcher, ...]] = ContextVar("supervisors", default=())


_count: ContextVar[Count | None] = ContextVar("count", default=None)


def counting(total: float | None, unit: str = "") -> Count:
    """Has the innermost phase say how far it is from here on: for who does the work, and does not know what for."""
    count = _count.get() or Count()
    count.begin(total, unit)
    return count


@contextlib.contextmanager
def phase(name: str, total: float | None = None, *, unit: str = "", done: float = 0) -> Iterator[Count]:
    """Tells the watchers, if there are any, that what follows is `name`, as in "compiling", and how long it took.

    Args:
        total: how much there is to do; what is done of it, `advance` of the result says.
        unit: of what is counted, as in "rows" or "bytes".
        done: what is done already.
    """
    watchers, count = _watchers(), Count(total, unit, done)
    if not watchers:
        yield count
        return
    start, seconds, token = time.monotonic(), None, _count.set(count)
    for watcher in watchers:
        watcher.started(name)
        watcher.counts(count)
    try:
        yield count
        seconds = time.monotonic() - start
    finally:
        _count.reset(token)
        for watcher in watchers:
            watcher.ended(name, seconds)


def begun(step: int) -> None:
    """Tells the watchers that a step was handed to the devices."""
    for watcher in _watchers():
        watcher.begun(step)


def advanced(done: int, total: int, waited: float = 0.0) -> None:
    """Tells the watchers how many steps are done, and how long the host has waited for the devices."""
    for watcher in _watchers():
        watcher.advanced(done, total, waited)


def failed(error: BaseException) -> None:
    """Tells the watchers of an error, before anything else is tried."""
    for watcher in _watchers():
        watcher.failed(error)


def watcher() -> Watcher | None:
    """Returns who shows the phases, if somebody does."""
    return _watcher.get()


def _watchers() -> list[Watcher]:
    shown = _watcher.get()
    return [*_supervisors.get(), *([] if shown is None else [shown])]


_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Has nobody show how far what happens inside is."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def is_quiet() -> bool:
    """Whether nobody wants to see how far it is."""
    return _quiet.get()


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Has a watcher told of the phases inside, in place of the one outside."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextlib.contextmanager
def supervised(watcher: Watcher) -> Iterator[None]:
    """Has a watcher told of all that happens inside, besides the one that shows it, and others like this one."""
    token = _supervisors.set((*_supervisors.get(), watcher))
    try:
        yield
    finally:
        _supervisors.reset(token)
