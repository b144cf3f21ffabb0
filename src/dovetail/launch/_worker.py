# SPDX-License-Identifier: Apache-2.0
"""The inside of a worker: it tells its agent how far it is, and ends when the agent is gone.

A thread sends a heartbeat with what the worker does and since when. It says nothing new while the worker hangs, and
nothing at all while the process is frozen: the supervisor tells one from the other.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

from dovetail.progress import Watcher, supervised

from ._lines import packed

BEAT = 0.25  # Seconds between heartbeats.
_MOST = 20_000  # Characters of a trace.
_PR_SET_PDEATHSIG = 1


class Reporter(Watcher):
    """Keeps what the worker does, for the heartbeat."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # Of the connection: the heartbeat and the main thread write.
        self._phases: list[str] = []
        self._news = threading.Event()
        self._closed = threading.Event()
        self._made = self._begun = self._total = 0
        self._waited = 0.0
        self._at = time.monotonic()

    def started(self, name: str) -> None:
        self._phases.append(name)
        self._at = time.monotonic()

    def ended(self, name: str, seconds: float | None) -> None:
        self._phases.pop()
        self._at = time.monotonic()

    def begun(self, step: int) -> None:
        self._begun, self._at = step, time.monotonic()

    def advanced(self, done: int, total: int, waited: float) -> None:
        first = not self._made
        self._made, self._total, self._waited, self._at = done, total, waited, time.monotonic()
        if first:
            self._news.set()

    def failed(self, error: BaseException) -> None:
        """Tells at once, before anything is tried to rescue: others wait for this process meanwhile."""
        text = "".join(traceback.format_exception(error))
        self.send(
            {
                "kind": "failed",
                "text": text if len(text) < _MOST else f"{text[: _MOST // 2]}\n...\n{text[-_MOST // 2 :]}",
            }
        )

    def state(self) -> dict[str, Any]:
        """Returns what a heartbeat says."""
        phase = self._phases[-1] if self._phases else ""
        quiet = time.monotonic() - self._at
        steps = {"begun": self._begun, "made": self._made, "total": self._total}
        return {"kind": "beat", **steps, "phase": phase, "quiet": quiet, "waited": self._waited}

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; if nobody is there any more, the process ends."""
        try:
            with self._lock:
                self._connection.sendall(packed(message))
        except OSError:
            _leave()

    def run(self) -> None:
        """Sends heartbeats, until `close`."""
        while not self._closed.is_set():
            self.send(self.state())
            self._news.wait(BEAT)
            self._news.clear()

    def close(self) -> None:
        """Sends no more heartbeats."""
        self._closed.set()


@contextlib.contextmanager
def reporting(connection: socket.socket, stacks: str) -> Iterator[None]:
    """Reports what happens inside to the agent; SIGUSR1 writes the stacks of all threads to a file."""
    reporter = Reporter(connection)
    with open(stacks, "a", encoding="utf-8") as file:
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Asks for a profile, and would end who does not listen yet.
        for name, work in (("heartbeat", reporter.run), ("agent", lambda: _watch(connection))):
            threading.Thread(target=work, name=name, daemon=True).start()
        try:
            with supervised(reporter):
                yield
        finally:
            reporter.close()
            faulthandler.unregister(signal.SIGUSR1)
            faulthandler.enable()


def _watch(connection: socket.socket) -> None:
    """Ends the process when the agent is gone. (What the kernel does by `die_with_parent`, where there is no Linux.)"""
    with contextlib.suppress(OSError):
        while connection.recv(1 << 10):
            pass
    _leave()


def _leave() -> None:
    print("The agent of this process is gone: it ends.", file=sys.stderr, flush=True)
    os._exit(1)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, and ends it if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
