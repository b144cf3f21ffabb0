# SPDX-License-Identifier: Apache-2.0
"""`Local`: all processes on this machine, each with an agent of its own, as if each were a host.

    dovetail launch          restarts the supervisor if that dies
      supervisor             decides
        agent, one a slot    starts and watches a worker; one that dies is started again, like a host that comes back
          zygote             has imported everything
            worker           trains

Each ends when the one above it is gone.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError, from_json, to_json

from ._agent import Agent
from ._alone import alone
from ._exit_codes import FAILED
from ._launcher import Job, Launcher
from ._records import Record, began_at
from ._status import LaunchStatus
from ._supervision import Supervision
from ._supervisor import Supervisor
from ._view import View
from ._worker import die_with_parent

TOKEN = "DOVETAIL_TOKEN"  # By which agents and their supervisor know each other.
LAUNCH = "DOVETAIL_LAUNCH"  # Which launch a process belongs to: it may take over from itself.
_SUPERVISE, _AGENT = (("-m", "dovetail.launch", command) for command in ("supervise", "agent"))
_RETURN = 2.0  # Seconds until an agent that died is there again.
_LIVES = 5  # Supervisors that may die within a minute of each other.
_LEAVING = 10.0  # Seconds that a supervisor takes to end, besides those for a save.


class Local(Launcher):
    """Processes on this machine."""

    class Config(Launcher.Config):
        spares: int = 0  # Further slots, with warm processes that take the place of one that fails.
        min_processes: int | None = None  # With how many it goes on when hosts are lost; None: with all or not at all.
        supervision: Supervision = Supervision()

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        least = cfg.processes if cfg.min_processes is None else cfg.min_processes
        if cfg.processes < 1 or cfg.spares < 0:
            raise ConfigError(
                f"launch: processes is {cfg.processes} and spares {cfg.spares}, expected 1 or more, and 0."
            )
        if not 1 <= least <= cfg.processes:
            raise ConfigError(
                f"launch: min_processes is {least}, expected 1 to {cfg.processes}, as there are processes."
            )
        cfg.supervision.check()

    def render(self, job: Job) -> Mapping[str, str]:
        """Returns the commands that are started: the supervisor's, then that of each agent and of its worker."""
        slots = range(self.cfg.processes + self.cfg.spares)
        lines = [shlex.join(["python", *_SUPERVISE, self._what(job)])]
        lines += [shlex.join(["python", *_AGENT, "127.0.0.1:PORT", str(slot), str(job.logs)]) for slot in slots]
        return {"commands.sh": "\n".join([*lines, shlex.join(["dovetail", *job.arguments]), ""])}

    def _what(self, job: Job) -> str:
        return json.dumps([to_json(self.cfg), job.arguments, str(job.directory), to_json(job.status)])

    def launch(self, job: Job) -> int:
        """Runs a supervisor, and another one if it dies. What asks this process to end, asks the run to save first."""
        job.logs.mkdir(parents=True, exist_ok=True)
        with alone(job.logs, patience=self.cfg.supervision.grace + _LEAVING) as lock:
            return self._launch(job, lock)

    def _launch(self, job: Job, lock: int) -> int:
        me = f"{socket.gethostname()}-{os.getpid()}"
        about = {"began": began_at(os.getpid())}
        Record("local", me, job.directory.name, str(job.directory.resolve()), about=about).write()
        environment = {**os.environ, LAUNCH: secrets.token_hex(8)}
        deaths: list[float] = []
        asked: list[int] = []
        running: list[subprocess.Popen[bytes]] = []

        def forward(number: int, _: Any) -> None:
            asked.append(number)
            for process in running:
                process.send_signal(signal.SIGTERM if len(asked) < 3 else signal.SIGKILL)

        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while True:
                command = [sys.executable, *_SUPERVISE, self._what(job)]
                # Its own session: Ctrl-C reaches this process only. Its input ends with it, and the lock does not.
                with subprocess.Popen(
                    command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=[lock], env=environment
                ) as process:
                    running[:] = [process]
                    code = process.wait()
                deaths = [*(at for at in deaths if time.monotonic() - at < 60), time.monotonic()]
                if code >= 0 or asked or len(deaths) >= _LIVES:
                    return code if code >= 0 else FAILED
                print(f"launch: the supervisor was ended by signal {-code}: starting another one", flush=True)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def supervise(what: str) -> int:
    """Supervises a job, and starts the agents for it; returns the exit code."""
    cfg_text, arguments, directory, status = json.loads(what)
    cfg: Local.Config = from_json(cfg_text)
    job = Job(tuple(arguments), Path(directory), from_json(status))
    return asyncio.run(_supervised(cfg, job))


async def _supervised(cfg: Local.Config, job: Job) -> int:
    token, pids = secrets.token_hex(16), dict[str, int]()
    least = cfg.processes if cfg.min_processes is None else cfg.min_processes
    supervisor = Supervisor(
        cfg.supervision,
        directory=job.logs,
        arguments=job.arguments,
        wanted=cfg.processes,
        least=least,
        token=token,
        view=View(sys.stdout),
        lost=lambda slot: _kill(pids.get(slot)),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, supervisor.stop)
    if not sys.stdin.isatty():
        loop.add_reader(sys.stdin.fileno(), lambda: _at_end(supervisor))
    port = await supervisor.listen()
    server = LaunchStatus(supervisor, job).server(job.status)
    if server is not None and (url := await server.start()):
        print(f"launch: status: {url}/status, /healthz, /metrics", flush=True)
    ending = asyncio.Event()
    slots = [str(number) for number in range(cfg.processes + cfg.spares)]
    agents = [asyncio.create_task(_kept(slot, port, token, job, ending, pids)) for slot in slots]
    try:
        return await supervisor.run()
    finally:
        if server is not None:
            server.close()
        ending.set()
        await asyncio.wait(agents, timeout=5)


def _at_end(supervisor: Supervisor) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        supervisor.stop()


def _kill(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def _kept(
    slot: str, port: int, token: str, job: Job, ending: asyncio.Event, pids: MutableMapping[str, int]
) -> None:
    """Keeps an agent in a slot: where one dies, another one comes after a while."""
    command = [sys.executable, *_AGENT, f"127.0.0.1:{port}", slot, str(job.logs), str(os.getpid())]
    while not ending.is_set():
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, TOKEN: token}
        )
        pids[slot] = process.pid
        ended = asyncio.create_task(process.wait())
        await asyncio.wait([ended, asyncio.create_task(ending.wait())], return_when=asyncio.FIRST_COMPLETED)
        if ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), 3)
            if not ended.done():
                process.kill()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), _RETURN)


def run_agent(address: str, slot: str, logs: str, parent: int | None, environ: Mapping[str, str]) -> int:
    """Runs the agent of a slot until its supervisor is done or gone."""
    if parent is not None:
        die_with_parent(parent)
    host, _, port = address.rpartition(":")
    environment = {name: value for name, value in environ.items() if name != TOKEN}
    agent = Agent(slot=slot, directory=Path(logs), zygote=zygote_command(), environment=environment)

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.leave)
        await agent.run((host, int(port)), environ[TOKEN])

    with contextlib.suppress(ConnectionError):
        asyncio.run(run())
    return 0


def zygote_command() -> Sequence[str]:
    """Returns what starts a zygote: the command line's own, as it knows how to run a command."""
    return [sys.executable, "-m", "dovetail.cli._zygote"]
