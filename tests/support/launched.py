# SPDX-License-Identifier: Apache-2.0
"""A real run under a real supervisor, in this process, with agents that can be lost; its workers fail as they are told.

    python -m support.launched SOCKET      (a zygote; its workers take the arguments CONFIG FAULTS)

FAULTS is a JSON list of `{"start": 1, "rank": 0, "step": 5, "do": "kill"}`: what a process does when it has heard that
a step is done. "tell" leaves a file with its environment in the directory of the run, and waits until that is gone.
"""

import asyncio
import importlib
import io
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from dovetail.config import from_json, to_json
from dovetail.hardware import start_devices
from dovetail.launch import Supervision, serve
from dovetail.launch._agent import Agent
from dovetail.launch._supervisor import Supervisor
from dovetail.launch._view import View
from dovetail.progress import Watcher, watching
from dovetail.train import Trainer

RULES = Supervision(heartbeat=10.0, hang_least=60.0, backoff=0.1, rescue=0.5)
_KEEP_ALL = {  # Programs of the first start are those of the next.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
SUPPORT = Path(__file__).parents[1]


class Launched:
    """One launch of a run."""

    def __init__(self, cfg, processes: int, *, spares: int = 0, faults: Sequence[dict] = ()) -> None:
        self.directory, self.slots = Path(cfg.directory), [str(slot) for slot in range(processes + spares)]
        logs = self.directory / "launch"
        logs.mkdir(parents=True)
        self.out = io.StringIO()
        self.supervisor = Supervisor(
            RULES,
            directory=logs,
            arguments=[to_json(cfg), json.dumps(list(faults))],
            wanted=processes,
            least=processes,
            token="secret",
            view=View(self.out),
        )
        self._agents: dict[str, asyncio.Task[bool]] = {}

    def come(self, slot: str) -> None:
        """Has the agent of a slot come."""
        path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
        environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(self.directory / "compiled"), **_KEEP_ALL}
        zygote, logs = [sys.executable, "-m", "support.launched"], self.directory / "launch"
        agent = Agent(slot=slot, directory=logs, zygote=zygote, environment={**environment, "PYTHONPATH": path})
        self._agents[slot] = asyncio.create_task(agent.run(("127.0.0.1", self._port), "secret"))

    async def lose(self, slot: str) -> None:
        """Ends an agent, and all that it holds."""
        self._agents[slot].cancel()
        await asyncio.wait([self._agents[slot]])

    async def told(self, start: int, rank: int) -> tuple[dict[str, str], Path]:
        """Waits for a process that tells its environment; it goes on when the file is gone."""
        file = self.directory / f"told.{start}.{rank}"
        while not file.exists():
            await asyncio.sleep(0.02)
        return json.loads(file.read_text()), file

    def run(self, meanwhile: Callable[["Launched"], Awaitable[None]] | None = None) -> int:
        """Runs it to its end; returns the exit code."""
        return asyncio.run(self._run(meanwhile))

    async def _run(self, meanwhile: Callable[["Launched"], Awaitable[None]] | None) -> int:
        self._port = await self.supervisor.listen()
        for slot in self.slots:
            self.come(slot)
        other = asyncio.ensure_future(meanwhile(self)) if meanwhile else None
        async with asyncio.timeout(240):
            code = await self.supervisor.run()
        if other is not None:
            await asyncio.wait_for(other, 10)
        await asyncio.wait(self._agents.values(), timeout=10)
        return code

    @property
    def said(self) -> str:
        """All that was written."""
        logs = sorted((self.directory / "launch").glob("*.log"))
        return self.out.getvalue() + "".join(log.read_text() for log in logs)

    def matches(self, pattern: str) -> bool:
        """Whether something like it was written."""
        return re.search(pattern, self.said) is not None


class _Faults(Watcher):
    def __init__(self, directory: Path, faults: Sequence[dict]) -> None:
        self._start, self._rank = (int(os.environ[name]) for name in ("DOVETAIL_START", "JAX_PROCESS_ID"))
        self._mine = [f for f in faults if f["rank"] == self._rank and f.get("start", self._start) == self._start]
        self._file = directory / f"told.{self._start}.{self._rank}"

    def started(self, name: str) -> None:
        pass

    def ended(self, name: str, seconds: float | None) -> None:
        pass

    def advanced(self, done: int, total: int, waited: float) -> None:
        for fault in self._mine:
            if fault["step"] == done:
                self._do(fault["do"])

    def _do(self, what: str) -> None:
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(dict(os.environ)))
        new.rename(self._file)
        while self._file.exists():
            time.sleep(0.01)


def _work(arguments: Sequence[str]) -> int:
    faults = json.loads(arguments[1])
    cfg: Trainer.Config = from_json(arguments[0])
    start_devices(cfg.mesh, os.environ)
    with watching(_Faults(Path(cfg.directory), faults)):
        cfg.build().run()
    return 0


if __name__ == "__main__":
    for module in ("jax.experimental.multihost_utils", "orbax.checkpoint.experimental.v1", "dovetail.serve"):
        importlib.import_module(module)  # Before anything is forked.
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), _work))
