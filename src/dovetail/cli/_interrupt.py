# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C: it ends a command at once, without a trace, wherever it is, and leaves no half-written line behind."""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_OVER = b"\0"  # Is no signal.


@contextlib.contextmanager
def ends_at_once(before: Callable[[], None] | None) -> Iterator[None]:
    """Has Ctrl-C end the program, not raise an exception: one could be lost, where Python ignores exceptions.

    Who listens for Ctrl-C himself, as a run with something to save, goes before.

    Args:
        before: is called first, in whatever thread. It cannot wait until the main thread is back from a compiler.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # It may be ignored, as in the background.
        yield
        return
    if before is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return

    def ended(number: int, frame: Any) -> None:
        before()
        _die()

    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        while (found := os.read(reader, 1)) not in (_OVER, b""):
            if found[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is ended:
                before()
                _die()

    signal.signal(signal.SIGINT, ended)
    os.register_at_fork(after_in_child=_forget)
    outer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, name="interrupt", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(outer)
        os.write(writer, _OVER)
        listener.join()
        os.close(reader)
        os.close(writer)


def _forget() -> None:
    """Has a process that was forked tell nobody but itself of its signals."""
    signal.set_wakeup_fd(-1)


def _die() -> None:
    """Ends the process by SIGINT, so that a shell knows why. Python lets only the main thread say so, C any."""
    ctypes.pythonapi.PyOS_setsig(int(signal.SIGINT), None)
    os.kill(os.getpid(), signal.SIGINT)
