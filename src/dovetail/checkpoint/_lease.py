# SPDX-License-Identifier: Apache-2.0
"""A lease on the directory of a run: one run at a time writes to it, and one that has lost it writes no more.

A lease is a note with a number. To take it is to create the next number, which one of several callers manages; the
highest number holds. The holder writes to its note every few seconds. Whoever wants the lease watches the note, and
takes it if it has not changed for a while by the watcher's own clock: clocks of two hosts are never compared. The note
of a process that is known to be gone, as it was on this host, needs no watching.
"""

import atexit
import dataclasses
import json
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

from dovetail.config import ConfigError
from dovetail.storage import born, kernel

from ._errors import CheckpointError
from ._notes import Notes

EVERY = 5.0  # Seconds between two signs of life.
PATIENCE = 30.0  # Seconds without one, after which a holder is taken for dead.
LAUNCH = "DOVETAIL_LAUNCH"  # Which launch a process belongs to, if a supervisor started it.
START = "DOVETAIL_START"  # The how manieth start of that launch.
_LOOK = 0.5  # Seconds between two looks at the note of another.
_BYTES = 1024  # Of a note, so that it can be written over in place.


class LeaseError(CheckpointError):
    """A run no longer holds its directory: another one does, or may."""


@dataclasses.dataclass(frozen=True)
class _Holder:
    """What a note says."""

    token: str
    host: str
    kernel: str  # Of the host, since its last start, and of the processes that can see each other.
    pid: int
    born: str  # When the process was started, by that kernel.
    launch: str
    start: int
    since: str  # Times are for people alone.
    renewed: str = ""
    beat: str = ""  # Of each writing another, so that no two are the same, whatever the clock does.

    def to_bytes(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode().ljust(_BYTES)

    @staticmethod
    def from_bytes(data: bytes) -> "_Holder | None":
        """Returns None for what is no note of a holder, or is being written."""
        try:
            found = _Holder(**json.loads(data))
            return found if isinstance(found.pid, int) and isinstance(found.start, int) else None
        except (ValueError, TypeError):
            return None

    def text(self) -> str:
        where = f"process {self.pid} on {self.host}, since {self.since}"
        return f"{where}, last renewed {self.renewed} by its clock"


class Lease:
    """A lease that this process holds. Thread-safe."""

    def __init__(self, notes: Notes, where: str) -> None:
        """Takes the lease, or raises a ConfigError that says who holds it. Waits only if somebody seems to."""
        self._notes, self.where = notes, where
        self._me = _myself()
        self._lost: str | None = None
        self._released = threading.Event()
        self._lock = threading.Lock()  # Between renewing and releasing.
        self._name = self._taken()
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def check(self) -> None:
        """Asks the store whether this is still the holder; a LeaseError if not."""
        self.raise_if_lost()
        names = self._notes.names()
        data = self._notes.read(names[-1]) if names else None
        holder = _Holder.from_bytes(data) if data else None
        if not names or names[-1] != self._name or (holder is not None and holder.token != self._me.token):
            self._lost = "It is not held now." if holder is None else f"It is held by {holder.text()}."
            self.raise_if_lost()

    def is_mine(self) -> bool:
        """Whether this process, and not one that it was forked from, holds the lease still."""
        try:
            self.check()
        except (OSError, CheckpointError):
            return False
        return os.getpid() == self._me.pid

    def raise_if_lost(self) -> None:
        """Raises a LeaseError if the lease is known to be lost. Asks nobody."""
        if self._lost is not None:
            raise LeaseError(
                f"{self.where}: this run (process {self._me.pid} on {self._me.host}) has lost its directory. "
                f"{self._lost}\n  It was not heard of for too long, so another run could take it. Nothing is written."
            )

    def release(self) -> None:
        """Lets others have it. What a process forked from this one does here has no effect."""
        if os.getpid() != self._me.pid or self._released.is_set():
            return
        with self._lock:
            self._released.set()
            try:
                if self._lost is None:
                    self._notes.delete(self._name)
            except (OSError, CheckpointError):
                pass  # It will be taken for dead.

    def _renew(self) -> None:
        while not self._released.wait(EVERY):
            _let_go_of_dropped()
            with self._lock:
                if self._released.is_set():
                    return
                try:
                    there = self._notes.update(self._name, _renewed(self._me))
                    if not there or self._notes.names()[-1:] != [self._name]:
                        self._lost = self._lost or "Another run has it, or had it."
                        return
                except (OSError, CheckpointError):
                    pass  # The next time may be better; if not, another run will have it, and `check` tells.

    def _taken(self) -> str:
        """Returns the name of the note by which this process holds the lease."""
        watch = _Watch(self.where, self._me)
        while True:
            names = self._notes.names()
            if names and not watch.is_free(self._notes.read(names[-1])):
                time.sleep(min(_LOOK, EVERY))
                continue
            mine = f"lease-{int(names[-1].rpartition('-')[2]) + 1 if names else 1:08d}"
            if not self._notes.create(mine, _renewed(self._me)):
                continue  # Somebody was faster.
            if {*self._notes.names()} - {*names} == {mine}:
                for name in names:
                    self._notes.delete(name)
                return mine
            self._notes.delete(mine)  # Somebody had come and gone meanwhile, and another may be here.


_leases: dict[str, tuple[Lease, int]] = {}  # Of this process, by place, with the number of those who need it.
_lock = threading.Lock()
_dropped: queue.SimpleQueue[Lease] = queue.SimpleQueue()


def hold(notes: Notes, where: str) -> Lease:
    """Returns the lease that this process holds; takes it if it has none. To be let go as often as held."""
    with _lock:
        lease, count = _leases.get(where, (None, 0))
        if lease is None or not lease.is_mine():
            lease, count = Lease(notes, where), 0
        _leases[where] = lease, count + 1
        return lease


def let_go(lease: Lease) -> None:
    """Releases a lease when nobody in this process needs it any more."""
    with _lock:
        held, count = _leases.get(lease.where, (None, 0))
        if held is lease and count > 1:
            _leases[lease.where] = lease, count - 1
            return
        if held is lease:
            del _leases[lease.where]
    lease.release()  # Without the lock: a store that does not answer holds up no run in another place.


def drop(lease: Lease) -> None:
    """Has a lease let go soon: for finalizers, which run wherever memory is collected and must wait for no lock."""
    _dropped.put(lease)


def _let_go_of_dropped() -> None:
    while True:
        try:
            lease = _dropped.get_nowait()
        except queue.Empty:
            return
        let_go(lease)


@atexit.register
def _release_all() -> None:
    for lease, _ in list(_leases.values()):
        lease.release()


class _Watch:
    """Whether the holder of a lease is alive, as seen from here."""

    def __init__(self, where: str, me: _Holder, clock: Callable[[], float] = time.monotonic) -> None:
        self._where, self._me, self._clock = where, me, clock
        self._seen: bytes | None = None
        self._since = 0.0
        self._phase: Any = None

    def is_free(self, data: bytes | None) -> bool:
        """Whether a lease with this note may be taken. Raises if its holder has shown that it is alive."""
        if data is None:
            return True
        holder = _Holder.from_bytes(data)
        if holder is not None:
            if holder.launch and holder.launch == self._me.launch:
                if holder.start > self._me.start:
                    self._refuse(f"{holder.text()}, a later start of the same launch")
                if holder.start < self._me.start:
                    return True
            if holder.kernel == self._me.kernel and born(holder.pid) != holder.born:
                return True
        now = self._clock()
        if self._seen is None:
            self._seen, self._since = data, now
        elif self._seen != data:
            self._refuse(holder.text() if holder else "somebody")
        return now - self._since >= PATIENCE

    def _refuse(self, who: str) -> NoReturn:
        raise ConfigError(
            f"{self._where}: another run is writing there: {who}.\n"
            f"  Stop that one first, or give this run a directory of its own: directory=runs/NAME\n"
            f"  (One that was killed need not be stopped: its place is free at once on the same host, and {PATIENCE:g} "
            "seconds later on another.)"
        )


def _myself() -> _Holder:
    start = os.environ.get(START, "0")
    return _Holder(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        kernel=kernel(),
        pid=os.getpid(),
        born=born(os.getpid()) or "",
        launch=os.environ.get(LAUNCH, ""),
        start=int(start) if start.isdecimal() else 0,
        since=_now(),
    )


def _renewed(holder: _Holder) -> bytes:
    return dataclasses.replace(holder, renewed=_now(), beat=uuid.uuid4().hex[:8]).to_bytes()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
