# SPDX-License-Identifier: Apache-2.0
"""Phases: parts of a program that take a while, with a name. Who runs through them does not know who watches."""

import abc
import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar


class Watcher(abc.ABC):
    """The interface. Phases may lie in each other."""

    @abc.abstractmethod
    def started(self, name: str) -> None:
        """A phase has begun."""

    @abc.abstractmethod
    def ended(self, name: str, seconds: float | None) -> None:
        """The innermost phase has ended; None: by an error."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Tells the watcher, if there is one, that what follows is `name`, as in "compiling", and how long it took."""
    watcher = _watcher.get()
    if watcher is None:
        yield
        return
    start, seconds = time.monotonic(), None
    watcher.started(name)
    try:
        yield
        seconds = time.monotonic() - start
    finally:
        watcher.ended(name, seconds)


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Has a watcher told of the phases inside, in place of the one outside."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)
