# SPDX-License-Identifier: Apache-2.0
"""What `tools/chaos.py` does to a run: one function for each kind of fault, and when each is to happen."""

import dataclasses
import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

When = Literal["step", "save", "start"]  # Between saves; while a step is in the making; while a gang is starting.
Expected = Literal["restart", "ended", "nothing"]  # What follows: a restart, the end of the launch, or nothing.


class Victim(Protocol):
    """A run, as the one who breaks it sees it."""

    control: Path
    checkpoints: Path
    ballast: Path | None  # Where a file fills the disk of the checkpoints; None: it is not apart.
    proxy: Any  # Before the store of the checkpoints (`support.s3.Proxy`); None: they are in a directory.

    def workers(self) -> dict[int, int]:
        """Returns the pids of the workers, by rank."""
        ...

    def agents(self) -> Sequence[int]:
        """Returns the pids of the agents that have a worker."""
        ...

    def supervisor(self) -> int:
        """Returns the pid of the supervisor."""
        ...

    def launcher(self) -> int:
        """Returns the pid of `dovetail launch`."""
        ...


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing to happen."""

    kind: str
    after: int  # The step that must have been made.
    when: When
    seed: int
    expected: Expected


def _kill(victim: Victim, rng: random.Random) -> None:
    _signal(rng.choice(list(victim.workers().values())), signal.SIGKILL)


def _coordinator(victim: Victim, rng: random.Random) -> None:
    _signal(victim.workers()[0], signal.SIGKILL)


def _all(victim: Victim, rng: random.Random) -> None:
    for pid in victim.workers().values():
        _signal(pid, signal.SIGKILL)


def _stop(victim: Victim, rng: random.Random) -> None:
    _signal(rng.choice(list(victim.workers().values())), signal.SIGSTOP)


def _ask(victim: Victim, rng: random.Random) -> None:
    _signal(rng.choice(list(victim.workers().values())), signal.SIGTERM)


def _agent(victim: Victim, rng: random.Random) -> None:
    _signal(rng.choice(victim.agents()), signal.SIGKILL)


def _leaving(victim: Victim, rng: random.Random) -> None:
    _signal(rng.choice(victim.agents()), signal.SIGTERM)


def _supervisor(victim: Victim, rng: random.Random) -> None:
    _signal(victim.supervisor(), signal.SIGKILL)


def _end(victim: Victim, rng: random.Random) -> None:
    _signal(victim.launcher(), signal.SIGTERM)


def _told(what: str) -> Callable[[Victim, random.Random], None]:
    def tell(victim: Victim, rng: random.Random) -> None:
        rank = rng.choice(list(victim.workers()))
        text = f"{what} {rng.choice((-3600, 3600, 86400))}" if what == "clock" else what
        new = victim.control / f"new.{rank}"
        new.write_text(text)
        new.rename(victim.control / f"fault.{rank}")

    return tell


def _corrupt(victim: Victim, rng: random.Random) -> None:
    """Flips a bit of the newest checkpoint, and ends a process so that it is read."""
    if (file := _largest_file(victim)) is not None:
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
    _kill(victim, rng)


def _half(victim: Victim, rng: random.Random) -> None:
    """Cuts a file of the newest checkpoint off, as a disk without power does."""
    if (file := _largest_file(victim)) is not None:
        os.truncate(file, rng.randrange(file.stat().st_size))
    _kill(victim, rng)


def _largest_file(victim: Victim) -> Path | None:
    steps = [each for each in victim.checkpoints.glob("step_*") if each.name[5:].isdigit()]
    if len(steps) < 2:  # Never the only good one: nothing could be restored.
        return None
    newest = max(steps, key=lambda each: int(each.name[5:]))
    files = [each for each in newest.rglob("*") if each.is_file() and "arrays" in each.parts]
    return max(files, key=lambda each: each.stat().st_size, default=None)


def _full(victim: Victim, rng: random.Random) -> None:
    """Fills the disk of the checkpoints; whoever broke it makes room again."""
    assert victim.ballast is not None
    with victim.ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def _errors(victim: Victim, rng: random.Random) -> None:
    """Has the store answer with errors now and then, and break connections; whoever broke it mends it."""

    def fault(method: str, path: str) -> str | None:
        return rng.choice(("500", "503", "reset", "lost")) if rng.random() < 0.3 else None

    victim.proxy.fault = fault


def _stall(victim: Victim, rng: random.Random) -> None:
    """Has the store not answer any more; whoever broke it mends it."""
    victim.proxy.fault = lambda method, path: "stall"


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # It was on its way out.
        return


KINDS: dict[str, tuple[Callable[[Victim, random.Random], None], Expected]] = {
    "kill": (_kill, "restart"),
    "coordinator": (_coordinator, "restart"),
    "all": (_all, "restart"),
    "stop": (_stop, "restart"),
    "hang": (_told("hang"), "restart"),
    "crash": (_told("crash"), "restart"),
    "agent": (_agent, "restart"),
    "supervisor": (_supervisor, "restart"),
    "corrupt": (_corrupt, "restart"),
    "half": (_half, "restart"),
    "sigterm": (_ask, "restart"),
    "leaving": (_leaving, "restart"),
    "end": (_end, "ended"),
    "slow": (_told("slow"), "nothing"),
    "clock": (_told("clock"), "nothing"),
    "full": (_full, "nothing"),
    "errors": (_errors, "nothing"),
    "stall": (_stall, "nothing"),
}
LASTING = {"full": 3.0, "errors": 4.0, "stall": 8.0}  # Seconds until somebody mends them.
REMOTE = (
    "errors",
    "stall",
    "kill",
    "agent",
    "all",
    "coordinator",
    "supervisor",
    "sigterm",
    "end",
)  # Where there is a store.
_SUDDEN = ("kill", "coordinator", "all", "stop", "agent", "supervisor")  # Those that can come at any moment.


def plan(count: int, seed: int, gap: int, kinds: Sequence[str]) -> list[Fault]:
    """Returns so many faults: each kind, those that are sudden a quarter of the time inside a save, some in starts."""
    rng = random.Random(seed)
    order = [kinds[i % len(kinds)] for i in range(count)]
    rng.shuffle(order)
    found: list[Fault] = []
    for number, kind in enumerate(order):
        when: When = "step"
        if kind in _SUDDEN:
            when = rng.choices(("step", "save", "start"), (3, 6, 1))[0]
            if when == "start" and (not found or found[-1].expected != "restart" or found[-1].kind == "supervisor"):
                when = "save"
        after = number * gap + rng.randrange(2, gap)
        found.append(Fault(kind, after, when, rng.randrange(2**32), KINDS[kind][1]))
    return found
