# SPDX-License-Identifier: Apache-2.0
"""Answers as they are written: a thread writes, an event loop or another thread reads."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from ._request import Finish, Progress, Request, Token


class EngineClosed(Exception):
    """The engine takes no requests: it has not been started, is about to end, has ended, or has failed."""


class Stream:
    """An answer. `async for progress in stream` reads what is new; what nobody has read yet comes at once.

    Times are of `time.monotonic()`.
    """

    def __init__(self, request: Request, cancel: Callable[["Stream"], None]) -> None:
        self.request = request
        self.arrived = time.monotonic()
        self.first: float | None = None  # When the first token was there,
        self.ended: float | None = None  # and the last.
        self._cancel = cancel
        self._changed = threading.Condition()
        self._waiter: asyncio.Future[None] | None = None
        self._tokens: list[Token] = []
        self._read = 0  # Tokens that have been read.
        self._prompt: tuple[Token, ...] = ()
        self._embedding: np.ndarray | None = None
        self._prompt_read = False
        self._cached = 0
        self._finish: Finish | None = None
        self._error = ""
        self._finish_read = False

    @property
    def finish(self) -> Finish | None:
        """Why the answer has ended, if it has."""
        return self._finish

    def cancel(self) -> None:
        """Ends the answer with "abort", if it has not ended. From any thread, as often as wanted."""
        if self._finish is None:
            self._cancel(self)

    def result(self, timeout: float | None = None) -> Progress:
        """Waits for the end, and returns the whole answer; raises a TimeoutError after so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._finish is not None, timeout):
                raise TimeoutError(f"the answer has not ended after {timeout} s.")
            whole = (tuple(self._tokens), self._finish, self._error, self._prompt, self._cached)
            return Progress(*whole, self._embedding)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Progress:
        while True:
            with self._changed:
                if (progress := self._new()) is not None:
                    return progress
                if self._finish_read:
                    raise StopAsyncIteration
                if self._waiter is not None and not self._waiter.done():
                    raise RuntimeError("a stream is read by one task at a time.")
                self._waiter = waiter = asyncio.get_running_loop().create_future()
            await waiter

    def _new(self) -> Progress | None:
        """What has not been read yet, which is then read."""
        ends = self._finish is not None and not self._finish_read
        prompt = () if self._prompt_read else self._prompt
        if not (ends or prompt or self._read < len(self._tokens)):
            return None
        tokens = tuple(self._tokens[self._read :])
        self._read = len(self._tokens)
        self._prompt_read = self._prompt_read or bool(prompt)
        self._finish_read = ends
        return Progress(tokens, self._finish, self._error, prompt, self._cached, self._embedding)

    def push(
        self,
        tokens: Sequence[Token] = (),
        finish: Finish | None = None,
        error: str = "",
        prompt: tuple[Token, ...] = (),
        cached: int | None = None,
        embedding: np.ndarray | None = None,
    ) -> asyncio.Future[None] | None:
        """Adds to the answer, for the engine alone; returns who waits for it in an event loop, to be woken."""
        with self._changed:
            if self._finish is not None:
                return None
            if tokens:
                self._tokens.extend(tokens)
                if self.first is None:
                    self.first = time.monotonic()
            self._prompt = self._prompt or prompt
            self._embedding = self._embedding if embedding is None else embedding
            self._cached = self._cached if cached is None else cached
            if finish is not None:
                self.ended = time.monotonic()
                self._finish, self._error = finish, error
                self._changed.notify_all()
            if not (tokens or prompt or finish):
                return None
            waiter, self._waiter = self._waiter, None
            return waiter


Waiting = tuple[Stream, "asyncio.Future[None]"]


def wake(waiting: Sequence[Waiting]) -> None:
    """Wakes those who wait, with one call for each event loop. A stream whose loop has gone is cancelled."""
    loops: dict[asyncio.AbstractEventLoop, list[Waiting]] = {}
    for stream, waiter in waiting:
        loops.setdefault(waiter.get_loop(), []).append((stream, waiter))
    for loop, of_loop in loops.items():
        try:
            loop.call_soon_threadsafe(_wake, [waiter for _, waiter in of_loop])
        except RuntimeError:  # The loop is closed: nobody will ever read.
            for stream, _ in of_loop:
                stream.cancel()


def _wake(waiters: list["asyncio.Future[None]"]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
