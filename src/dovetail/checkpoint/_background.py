# SPDX-License-Identifier: Apache-2.0
"""Threads that come to their end although the program does not wait for them."""

import functools
import threading
from collections.abc import Callable

_running: set[threading.Thread] = set()


def start_thread(work: Callable[[], None], *, name: str) -> threading.Thread:
    """Starts `work`, which must not raise, in a thread that the process finishes before it ends."""

    def run() -> None:
        try:
            work()
        finally:
            _running.discard(thread)

    thread = threading.Thread(target=run, name=name)
    _running.add(thread)
    thread.start()
    _join_at_exit()
    return thread


@functools.cache
def _join_at_exit() -> None:
    """Waits for threads before the interpreter closes all executors, which reading and writing may need to the end.

    The interpreter itself waits only after that. Hooks run last in, first out, so this one has to be registered when
    `concurrent.futures` has registered its own; there is no public function for it (CPython 3.9 to 3.14).
    """
    threading._register_atexit(lambda: [thread.join() for thread in list(_running)])  # pyright: ignore[reportAttributeAccessIssue]
