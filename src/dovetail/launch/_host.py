# SPDX-License-Identifier: Apache-2.0
"""The entry of a job on each of its hosts: `python -m dovetail.launch host WORK DIRECTORY [PATH=VALUE ...]`.

An engine starts this once on each host, or once for each chip. WORK is what `Work.text` returned, the same on all
hosts, and DIRECTORY that of the run. Who a host is, its environment says:

    DOVETAIL_TOKEN       by which agents and their supervisor know each other; the same on all hosts of a job
    DOVETAIL_SUPERVISOR  where the supervisor is: HOST:PORT, or several with commas, which agents try one after another
    DOVETAIL_SLOT        this host's number, from 0; without it, from what the engine sets:
                         JOB_INDEX x COMPLETIONS + JOB_COMPLETION_INDEX on Kubernetes, SLURM_PROCID under Slurm
    DOVETAIL_LAUNCH      the name of the job, the same when its engine starts it again: it may go on at once in the
                         directory of a start before; without it, made of cluster and number of a Slurm job
    DOVETAIL_ID          the job as its engine names it, if it may be cancelled by that name; else SLURM_JOB_ID
    DOVETAIL_BUNDLE      where the bundle is unpacked: takes the place of {bundle} in the arguments
    DOVETAIL_PER_HOST    "chips" if this is started once for each chip (Slurm alone; SLURM_LOCALID is the chip)

Slot 0 also runs the supervisor, which listens at the port of DOVETAIL_SUPERVISOR. It need not be there first: agents
try until it is. The exit code of slot 0 is that of the run, which is also written to `launch/code`; others end with 0,
also if the supervisor does not come back.
"""

import asyncio
import contextlib
import fnmatch
import json
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.config import ConfigError, from_json, to_json
from dovetail.progress import Status

from ._agent import Agent, free_port
from ._exit_codes import DONE, RESUMABLE
from ._launcher import Job
from ._local import LAUNCH, TOKEN, zygote_command
from ._records import is_cancelled, write_whole
from ._status import LaunchStatus
from ._supervision import Supervision
from ._supervisor import Supervisor
from ._view import View

_AGAIN = 0.1  # Seconds between two tries to reach the supervisor.
_BIND = 5.0  # Seconds that its port may still be taken, by the one before.
_FIRST = 900.0  # Seconds that the supervisor may take to come at first: its host may have to fetch much.
# Interfaces that other hosts do not reach, though they have addresses.
_INSIDE = ("lo", "docker*", "virbr*", "veth*", "cni*", "br-*")
_SIOCGIFADDR = 0x8915
_SUPERVISOR, _SLOT, _BUNDLE, _CHIPS, _ID = (
    f"DOVETAIL_{name}" for name in ("SUPERVISOR", "SLOT", "BUNDLE", "PER_HOST", "ID")
)
_OWN = (TOKEN, _SUPERVISOR, _SLOT, _BUNDLE, _CHIPS, _ID, "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NODELIST")


class Work(NamedTuple):
    """What the hosts of a job do together."""

    arguments: tuple[str, ...]  # Of `dovetail`, in each process; {bundle} stands for where the bundle is.
    processes: int
    least: int  # With how many it goes on when hosts are lost.
    supervision: Supervision
    status: Status = Status()
    patience: float = 60.0  # Seconds for hosts, or the supervisor, to come back before the engine starts all again.
    together: int = 1  # Hosts, by number, that work only together: those of a slice of TPUs.

    @property
    def text(self) -> str:
        """Returns it for a command line, in one line."""
        found = {**self._asdict(), "supervision": to_json(self.supervision), "status": to_json(self.status)}
        for name in ("supervision", "status"):
            found[name] = json.loads(found[name])
        return json.dumps(found, separators=(",", ":"))

    @staticmethod
    def of(text: str) -> "Work":
        """Returns what a text stands for."""
        found = json.loads(text)
        for name in ("supervision", "status"):
            found[name] = from_json(json.dumps(found[name]))
        return Work(**{**found, "arguments": tuple(found["arguments"])})


class Identity(NamedTuple):
    """Who a host is in its job."""

    slot: int
    supervisor: tuple[tuple[str, int], ...]  # Where it may be.
    token: str
    launch: str
    id: str  # Of the job, as its engine names it; empty if it is not told.

    @staticmethod
    def of(environ: Mapping[str, str]) -> "Identity":
        """Returns what an environment says; a ConfigError if that is not enough."""
        missing = [name for name in (TOKEN, _SUPERVISOR) if not environ.get(name)]
        if missing:
            raise ConfigError(f"launch host: {' and '.join(missing)} must be in the environment: engines set it.")
        places: list[tuple[str, int]] = []
        for place in environ[_SUPERVISOR].split(","):
            host, _, port = place.strip().rpartition(":")
            if not host or not port.isdecimal():
                raise ConfigError(f"launch host: {_SUPERVISOR} has {place!r}, expected HOST:PORT.")
            places.append((host.strip("[]"), int(port)))
        job = environ.get("SLURM_JOB_ID", "")
        slurm = f"slurm-{environ.get('SLURM_CLUSTER_NAME', '')}-{job}" if job else ""
        launch = environ.get(LAUNCH) or slurm
        return Identity(slot_of(environ), tuple(places), environ[TOKEN], launch, environ.get(_ID, job))


def slot_of(environ: Mapping[str, str]) -> int:
    """Returns the number of a host, from what its engine says.

    >>> slot_of({"JOB_INDEX": "2", "COMPLETIONS": "4", "JOB_COMPLETION_INDEX": "3"})
    11
    """
    ways = ((_SLOT,), ("JOB_INDEX", "COMPLETIONS", "JOB_COMPLETION_INDEX"), ("SLURM_PROCID",))
    for names in ways:
        values = [environ.get(name, "") for name in names]
        if all(value.isdecimal() for value in values):
            numbers = [int(value) for value in values]
            return numbers[0] if len(numbers) == 1 else numbers[0] * numbers[1] + numbers[2]
    told = ", or ".join(" with ".join(names) for names in ways)
    raise ConfigError(f"launch host: nothing says which host this is. Set {told}, to a number.")


def run_host(work: str, directory: str, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Does this host's part of a job, until that is over; returns the exit code."""
    who, what, where = Identity.of(environ), Work.of(work), Path(directory)
    bundle = environ.get(_BUNDLE, "")
    arguments = [text.replace("{bundle}", bundle) for text in what.arguments]
    arguments += [*overrides, f"directory={directory}"]
    host = _Host(what._replace(arguments=tuple(arguments)), who, where, worker_environment(environ))
    return asyncio.run(host.run())


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of this host's processes.

    What says who this host is stays out: JAX would find a cluster by itself, and take one GPU for each process of a
    host, where a process should have all. With a process for each chip, that chip is named.
    """
    chip = environ.get("SLURM_LOCALID") if environ.get(_CHIPS) == "chips" else None
    kept = {name: value for name, value in environ.items() if name not in _OWN}
    return kept if chip is None else {**kept, "JAX_LOCAL_DEVICE_IDS": chip}


class _Host:
    def __init__(self, work: Work, who: Identity, directory: Path, environment: Mapping[str, str]) -> None:
        self._work, self._who, self._environment = work, who, environment
        self._job = Job(work.arguments, directory, work.status)
        self._agent: Agent | None = None
        self._supervisor: Supervisor | None = None
        self._leaving = False
        self._over = asyncio.Event()

    async def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._leave)
        self._job.logs.mkdir(parents=True, exist_ok=True)
        agent = asyncio.create_task(self._serve())
        if self._who.slot:
            return await agent
        try:
            code = await self._supervise()
            write_whole(self._job.logs / "code", f"{code}\n".encode())
            return code
        finally:
            self._over.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(agent, 5)

    def _leave(self) -> None:
        """Somebody asks this host to end: the run saves. That of slot 0 takes all with it."""
        self._leaving = True
        if self._supervisor is not None:
            self._supervisor.stop()
        elif self._agent is not None:
            self._agent.leave()

    async def _supervise(self) -> int:
        work, who = self._work, self._who
        self._supervisor = supervisor = Supervisor(
            work.supervision,
            directory=self._job.logs,
            arguments=work.arguments,
            wanted=work.processes,
            least=work.least,
            token=who.token,
            view=View(sys.stdout),
            environment={LAUNCH: who.launch} if who.launch else {},
            patience=work.patience,
            together=work.together,
            missing=RESUMABLE,  # The engine may find others.
        )
        if self._leaving or is_cancelled(self._job.directory, who.id):
            supervisor.stop()
        await _listening(supervisor, who.supervisor[0][1])
        server = LaunchStatus(supervisor, self._job).server(work.status)
        if server is not None and (url := await server.start()):
            print(f"launch: status: {url}/status, /healthz, /metrics", flush=True)
        try:
            return await supervisor.run()
        finally:
            if server is not None:
                server.close()

    async def _serve(self) -> int:
        """Runs an agent, as long as there is a supervisor; waits for one that is not there."""
        until = time.monotonic() + max(_FIRST, self._work.patience)
        while not self._over.is_set() and time.monotonic() < until:
            for place in self._who.supervisor:
                if not await _reaches(place):
                    continue
                self._agent = Agent(
                    slot=str(self._who.slot),
                    directory=self._job.logs,
                    zygote=zygote_command(),
                    environment=self._environment,
                )
                with contextlib.suppress(OSError):
                    if await self._agent.run(place, self._who.token):
                        return DONE
                self._agent, until = None, time.monotonic() + self._work.patience
                break
            if self._leaving:
                return DONE
            await asyncio.sleep(_AGAIN)
        if not self._over.is_set():
            places = ", ".join(f"{host}:{port}" for host, port in self._who.supervisor)
            print(f"launch: slot {self._who.slot}: there is no supervisor at {places}", flush=True)
        return DONE


async def _reaches(place: tuple[str, int]) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(*place), 3)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _listening(supervisor: Supervisor, port: int) -> None:
    until = time.monotonic() + _BIND
    while True:
        try:
            await supervisor.listen(None, port)
            return
        except OSError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(_AGAIN)


def addresses() -> str:
    """Returns where other hosts reach this one, with a port that is free, as DOVETAIL_SUPERVISOR takes it."""
    port = free_port()
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                found[name] = _address(probe, name)
    outside = [each for name, each in found.items() if not any(fnmatch.fnmatch(name, way) for way in _INSIDE)]
    return ",".join(f"{each}:{port}" for each in dict.fromkeys(outside or found.values()))


def _address(probe: socket.socket, interface: str) -> str:
    import fcntl  # Not on Windows.

    asked = struct.pack("256s", interface[:15].encode())
    return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)[20:24])
