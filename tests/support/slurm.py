# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on this machine: a controller and four nodes on loopback, which tests may break.

    python -m support.slurm DIRECTORY      (starts it, prints what to export, and ends it when its input ends)

Nodes n1 and n2 have two GPUs each that are called H100, n3 and n4 two that are called A100; all GPUs are empty files.
Partition `hi` takes nodes from `lo`, which is the default. What Slurm waits for is short: see `_CONF`.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

NEEDED = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
NODES = ("n1", "n2", "n3", "n4")
_PATIENCE = 60.0

_CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={d}/sock,cred_expire={expire}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
JobCompType=jobcomp/filetxt
JobCompLoc={d}/jobs.txt
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{requeue}
KillWait=3
SlurmdTimeout=4
MessageTimeout=3
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=10000
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/%n
SlurmctldPidFile={d}/c.pid
SlurmdPidFile={d}/%n.pid
SlurmctldLogFile={d}/c.log
SlurmdLogFile={d}/%n.log
NodeName=n1 Port={ports[1]} Gres=gpu:h100:2 Feature=h100,nvlink Weight=10 {node}
NodeName=n2 Port={ports[2]} Gres=gpu:h100:2 Feature=h100,nvlink Weight=10 {node}
NodeName=n3 Port={ports[3]} Gres=gpu:a100:2 Feature=a100 {node}
NodeName=n4 Port={ports[4]} Gres=gpu:a100:2 Feature=a100 {node}
PartitionName=lo Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace}
PartitionName=hi Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """Returns why there can be no Slurm here; empty if there can."""
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    packages = sorted({package for program, package in NEEDED.items() if shutil.which(program) is None})
    return f"these packages are missing: {' '.join(packages)}" if packages else ""


class Slurm:
    """A cluster in a directory.

    Args:
        requeues: whether exit code 85 has it start a job again by itself, as clusters may be set up to do.
        grace: seconds that a job has to save when another one takes its nodes.
        expire: seconds that Slurm waits before it starts a job again; clusters have 120.
    """

    def __init__(self, directory: Path, *, requeues: bool = True, grace: int = 10, expire: int = 5) -> None:
        self.directory, host = directory, socket.gethostname().partition(".")[0]
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        (directory / "state").mkdir()
        for name in ("gpu0", "gpu1"):
            (directory / name).touch()
        key = directory / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for node in NODES:
            (directory / node).mkdir()
        kinds = dict(zip(NODES, ("h100", "h100", "a100", "a100"), strict=True))
        gres = [f"NodeName={n} Name=gpu Type={kind} File={directory}/gpu[0-1]" for n, kind in kinds.items()]
        (directory / "gres.conf").write_text("\n".join(gres) + "\n")
        node = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=4000"
        requeue = "RequeueExit=85" if requeues else ""
        about = {"d": directory, "host": host, "node": node, "requeue": requeue, "grace": grace, "expire": expire}
        self.conf = directory / "slurm.conf"
        self.conf.write_text(_CONF.format(ports=_free_ports(5), **about))
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        """Starts all of it, and waits until the nodes are there."""
        d = self.directory
        files = {"--key-file": "key", "--socket": "sock", "--pid-file": "m.pid", "--log-file": "m.log"}
        options = [f"{option}={d}/{file}" for option, file in {**files, "--seed-file": "seed"}.items()]
        self.run("munged", "--force", *options)
        self.start_controller()
        for name in NODES:
            self.start_node(name)
        self.until(lambda: len(self.idle()) == len(NODES), "nodes")

    def start_controller(self) -> None:
        self.run("slurmctld", "-f", str(self.conf))

    def start_node(self, name: str) -> None:
        self.run("slurmd", "-f", str(self.conf), "-N", name)

    def idle(self) -> set[str]:
        """Returns the nodes that have nothing to do."""
        done = self.run("sinfo", "-h", "-p", "lo", "-N", "-t", "idle", "-o", "%N", check=False)
        return set(done.stdout.split())

    def kill_controller(self) -> None:
        _kill([_pid(self.directory / "c.pid")])

    def kill_node(self, name: str) -> None:
        """A node dies, with all that runs on it: nobody is told."""
        daemon = _pid(self.directory / f"{name}.pid")
        steps = [pid for pid, words in _processes().items() if "slurmstepd: [" in words and self._is_on(pid, name)]
        _kill([daemon, *steps, *_descendants(steps)])

    def _is_on(self, pid: int, node: str) -> bool:
        with contextlib.suppress(OSError):
            logs = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
            return str(self.directory / f"{node}.log") in logs
        return False

    def stop(self) -> None:
        """Ends all of it, jobs included."""
        steps = [pid for pid, words in _processes().items() if "slurmstepd: [" in words and self._is_ours(pid)]
        daemons = [_pid(file) for file in self.directory.glob("*.pid")]
        _kill([*daemons, *steps, *_descendants(steps)])

    def _is_ours(self, pid: int) -> bool:
        return any(self._is_on(pid, node) for node in NODES)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a program with this cluster as its own."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=_PATIENCE)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        return done

    def until(self, condition: Callable[[], bool], what: str, seconds: float = _PATIENCE) -> None:
        """Waits for something."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                log = (self.directory / "c.log").read_text().splitlines()[-20:]
                raise AssertionError("\n".join([f"waited {seconds:.0f} s for {what}", *log]))
            time.sleep(0.05)


@contextlib.contextmanager
def slurm(directory: Path | None = None, **options: Any) -> Iterator[Slurm]:
    """Yields a cluster that is there meanwhile."""
    where = Path(tempfile.mkdtemp(prefix="slurm-")) if directory is None else directory
    cluster = Slurm(where, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        if directory is None:
            shutil.rmtree(where, ignore_errors=True)


def _free_ports(count: int) -> Sequence[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _pid(file: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return 0


def _processes() -> dict[int, str]:
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
    return found


def _descendants(pids: Sequence[int]) -> list[int]:
    found, left = list[int](), list(pids)
    while left:
        with contextlib.suppress(OSError):
            pid = left.pop()
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = [int(each) for each in (task / "children").read_text().split()]
                found += children
                left += children
    return found


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    with slurm(Path(sys.argv[1])) as running:
        print(f"export SLURM_CONF={running.conf}", flush=True)
        sys.stdin.read()
