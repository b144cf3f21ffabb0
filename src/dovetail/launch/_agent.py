# SPDX-License-Identifier: Apache-2.0
"""`Agent`: on each host, it starts the worker of that host, watches it, and does what the supervisor says.

It holds a zygote, so that a worker is there at once, and in its memory what workers of this and other hosts keep of
their state, so that it is there when they are not. It knows nothing about training, and does not import JAX.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dovetail.blobs import MEMORY, SLOT, TOKEN, Memory, Server, token_of

from ._lines import LIMIT, Message, messages, packed
from ._worker import BEAT

_MOST_LINES = 200  # Of a log that are told at once; all are in the file.


class Agent:
    """One host's part of a launch.

    Args:
        slot: the name of this host's place in the launch.
        directory: where logs go.
        zygote: the command that starts a zygote; the number of its socket is appended.
        environment: of the zygote.
    """

    def __init__(
        self,
        *,
        slot: str,
        directory: Path,
        zygote: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._slot, self._directory, self._command, self._environment = slot, directory, zygote, dict(environment)
        self._log, self._stacks = directory / f"{slot}.log", directory / f"{slot}.stacks"
        directory.mkdir(parents=True, exist_ok=True)
        self._worker: _Worker | None = None
        self._zygote: _Zygote | None = None

    async def run(self, address: tuple[str, int], token: str) -> bool:
        """Serves the supervisor at an address, until it says so or is gone; returns whether it said so."""
        reader, self._writer = await asyncio.open_connection(*address, limit=LIMIT)
        # At the address by which the supervisor, and so other hosts, reach this one.
        blobs = Server(Memory(), host=self._writer.get_extra_info("sockname")[0], token=token_of(token))
        self._blobs = {SLOT: self._slot, MEMORY: blobs.address, TOKEN: token_of(token)}
        about = {"slot": self._slot, "host": socket.gethostname(), "pid": os.getpid(), "memory": blobs.address}
        self._send({"kind": "hello", "token": token, **about})
        tasks = [asyncio.create_task(each) for each in (self._warm(), self._beat())]
        try:
            async for message in messages(reader):
                if message["kind"] == "end":
                    return True
                await self._obey(message)
            return False
        finally:
            self._writer.close()
            blobs.close()
            for task in tasks:
                task.cancel()
            following = [self._worker.task] if self._worker and self._worker.task else []
            self._kill()
            await asyncio.wait([*tasks, *following])
            if self._zygote is not None:
                await self._zygote.close()

    def leave(self) -> None:
        """Tells the supervisor that this host will end: the run saves, and goes on without it."""
        self._send({"kind": "leaving"})

    def _send(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(packed(message))

    async def _beat(self) -> None:
        """Tells that this host is alive, and what its worker has written."""
        while True:
            self._send({"kind": "alive"})
            if self._worker is not None and (lines := self._worker.new_lines()):
                self._send({"kind": "log", "rank": self._worker.rank, "lines": lines})
            await asyncio.sleep(BEAT)

    async def _warm(self) -> None:
        """Keeps a zygote: a new one when the old one has died."""
        while True:
            self._zygote = zygote = await _Zygote.started(self._command, self._environment, self._log)
            if await zygote.can_fork():
                self._send({"kind": "ready"})
            await zygote.gone.wait()
            self._send({"kind": "cold"})
            await zygote.close()
            await asyncio.sleep(1.0)

    async def _obey(self, message: Message) -> None:
        match message["kind"]:
            case "port":
                self._send({"kind": "port", "port": free_port(), "generation": message["generation"]})
            case "start":
                await self._start(message)
            case "term":
                self._signal(signal.SIGTERM)
            case "dump":
                self._dump(message["why"])
            case "profile":
                self._signal(signal.SIGUSR2)
            case "kill":
                self._kill()
            case _:
                print(f"agent: does not know {message['kind']!r}", file=sys.stderr)

    async def _start(self, message: Message) -> None:
        self._kill()
        generation, rank = message["generation"], message["rank"]
        if self._zygote is None or self._zygote.gone.is_set():
            self._send({"kind": "exited", "generation": generation, "rank": rank, "code": 1, "text": "no zygote"})
            return
        worker = _Worker(generation, rank, self._log)
        ours, theirs = socket.socketpair()
        environment = {**message["environment"], **self._blobs}
        request = {"arguments": message["arguments"], "environment": environment, "log": str(worker.log)}
        try:
            worker.pid = await self._zygote.fork({**request, "stacks": str(self._stacks)}, theirs)
        except OSError as e:
            self._send({"kind": "exited", "generation": generation, "rank": rank, "code": 1, "text": str(e)})
            return
        self._worker = worker
        self._send({"kind": "started", "generation": generation, "rank": rank, "pid": worker.pid})
        worker.task = asyncio.create_task(self._follow(worker, ours, self._zygote))

    async def _follow(self, worker: "_Worker", connection: socket.socket, zygote: "_Zygote") -> None:
        """Passes on what a worker reports, and how it ends."""
        connection.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LIMIT)
        who = {"generation": worker.generation, "rank": worker.rank}
        async for message in messages(reader):
            self._send({**message, **who})
        # Its end of the connection is closed, so it has ended, or is about to.
        self._send({"kind": "ending", **who})
        code = await zygote.code_of(worker.pid)
        lines = worker.new_lines(whole=True)
        self._send({"kind": "log", "rank": worker.rank, "lines": lines})
        self._send({"kind": "exited", **who, "code": code, "text": worker.last_words()})
        writer.close()

    def _signal(self, number: int) -> None:
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._worker.pid, number)

    def _dump(self, why: str) -> None:
        """Has the worker write the stacks of its threads; what the kernel knows of it is written here."""
        if (worker := self._worker) is None:
            return
        lines = [f"start {worker.generation}, process {worker.rank}: {why}"]
        for name in ("status", "wchan"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{worker.pid}/{name}").read_text("utf-8")
                lines += [line for line in text.splitlines() if name == "wchan" or line.startswith("State:")]
        mark(self._stacks, "\n".join(lines))
        self._signal(signal.SIGUSR1)

    def _kill(self) -> None:
        """Ends the worker with its children, if there is one."""
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._worker.pid, signal.SIGKILL)
            self._worker = None


class _Worker:
    """A worker as its agent sees it."""

    def __init__(self, generation: int, rank: int, log: Path) -> None:
        self.generation, self.rank, self.log = generation, rank, log
        self.pid = 0
        self.task: asyncio.Task[None] | None = None
        mark(log, f"start {generation}, process {rank}")
        self._read = self._first = log.stat().st_size

    def new_lines(self, *, whole: bool = False) -> list[str]:
        """Returns what was written since the last time: the lines that are complete, or all."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self._read)
            data = file.read(LIMIT // 4)
            if not whole:
                data = data[: data.rfind(b"\n") + 1]
            self._read += len(data)
            return data.decode(errors="replace").splitlines()[-_MOST_LINES:]
        return []

    def last_words(self) -> str:
        """Returns the end of what it has written: the last traceback, or a few lines."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._first, size - (1 << 16)))
            lines = file.read().decode(errors="replace").splitlines()
            traces = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
            return "\n".join(lines[traces[-1] :][-100:] if traces else lines[-20:])
        return ""


class _Zygote:
    """A zygote as its agent sees it."""

    def __init__(self, process: asyncio.subprocess.Process, connection: socket.socket) -> None:
        self._process, self._connection = process, connection
        self.gone = asyncio.Event()
        self._settled = asyncio.Event()
        self._pids: asyncio.Queue[int] = asyncio.Queue()
        self._codes: dict[int, asyncio.Future[int]] = {}
        self._task: asyncio.Task[None] | None = None  # Kept, or it would be collected.

    @classmethod
    async def started(cls, command: Sequence[str], environment: Mapping[str, str], log: Path) -> "_Zygote":
        """Starts one."""
        ours, theirs = socket.socketpair()
        number = str(theirs.fileno())
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *command, number, pass_fds=[theirs.fileno()], env=dict(environment), stdout=file, stderr=file
            )
        theirs.close()
        ours.setblocking(False)
        zygote = cls(process, ours)
        zygote._task = asyncio.create_task(zygote._listen())
        return zygote

    async def can_fork(self) -> bool:
        """Waits until it can fork, or has ended; returns whether it can."""
        await self._settled.wait()
        return not self.gone.is_set()

    async def _listen(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._connection.dup(), limit=LIMIT)
        async for message in messages(reader):
            match message["kind"]:
                case "ready":
                    self._settled.set()
                case "pid":
                    self._pids.put_nowait(message["pid"])
                case "exited":
                    self._code(message["pid"]).set_result(message["code"])
        self._writer.close()
        self.gone.set()
        self._settled.set()
        self._pids.put_nowait(0)
        for future in self._codes.values():
            if not future.done():
                future.set_result(-signal.SIGKILL)  # They end with their parent.

    def _code(self, pid: int) -> "asyncio.Future[int]":
        return self._codes.setdefault(pid, asyncio.get_running_loop().create_future())

    async def fork(self, request: Message, reports: socket.socket) -> int:
        """Returns the pid of a new worker, which reports through a socket."""
        data = packed(request)
        socket.send_fds(self._connection, [data], [reports.fileno()])
        reports.close()
        if (pid := await self._pids.get()) == 0:
            raise ConnectionError("the zygote has died")
        self._code(pid)
        return pid

    async def code_of(self, pid: int) -> int:
        """Returns the exit code of a worker when it has ended."""
        code = await self._code(pid)
        del self._codes[pid]
        return code

    async def close(self) -> None:
        """Ends it, and its workers with it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._task is not None:
            await self._task
        self._connection.close()


def mark(file: Path, text: str) -> None:
    """Appends a line to a file that says what follows."""
    with file.open("a", encoding="utf-8") as opened:
        opened.write(f"==== {time.strftime('%F %T')} {text}\n")


def free_port() -> int:
    """Returns a port of this host that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
