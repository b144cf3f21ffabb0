# SPDX-License-Identifier: Apache-2.0
"""A zygote: a process that has imported everything, and forks a worker when it is asked for one.

Imports take longer than all else that a restart needs. What forks must have no threads that hold locks, so a zygote
never starts JAX's backends; those of its children are their own.
"""

import gc
import os
import selectors
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

from ._lines import LIMIT, packed, unpacked
from ._worker import die_with_parent, reporting

READY = {"kind": "ready"}


def serve(connection: socket.socket, run: Callable[[Sequence[str]], int]) -> int:
    """Forks a worker for each request, which comes with a socket for its reports; until the agent is gone.

    A request has `arguments`, `environment`, `log` and `stacks`. The answer is the `pid`, and later `exited`. Returns
    the exit code in a worker, too, so that it ends as any program does.

    Args:
        run: does the work of a worker, and returns its exit code.
    """
    reads, writes = os.pipe()  # Wakes up when a child ends.
    os.set_blocking(writes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    # Engines send it to all processes of a job at once. Workers save then, which they could not if this one ended.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # What was imported stays shared with the children.
    connection.sendall(packed(READY))
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    selector.register(reads, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == reads:
                os.read(reads, 1 << 10)
                _reap(connection)
                continue
            data, files, _, _ = socket.recv_fds(connection, LIMIT, 1)
            while data and not data.endswith(b"\n"):
                data += connection.recv(LIMIT)
            if not data:
                return 0  # The workers go as well: the kernel ends them with their parent.
            request, zygote = unpacked(data), os.getpid()
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                connection.close()
                die_with_parent(zygote)
                return _work(request, socket.socket(fileno=files[0]), run)
            os.close(files[0])
            connection.sendall(packed({"kind": "pid", "pid": pid}))


def _reap(connection: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection.sendall(packed({"kind": "exited", "pid": pid, "code": os.waitstatus_to_exitcode(status)}))


def _work(request: dict[str, Any], reports: socket.socket, run: Callable[[Sequence[str]], int]) -> int:
    """Does a worker's work in the process that was forked for it."""
    os.setpgid(0, 0)  # Its own children, as those that read data, can be ended with it.
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    os.environ.update(request["environment"])
    with reporting(reports, request["stacks"]):
        return run(request["arguments"])
