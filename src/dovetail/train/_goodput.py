# SPDX-License-Identifier: Apache-2.0
"""Goodput: which part of a run's time went to steps that count, and where the rest went."""

import contextlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from dovetail.parallel import is_first
from dovetail.progress import LEDGER, LOSABLE, Account, Kind, Ledger, Moment, Watcher, began, gap, now, read_events

_EVERY = 3.0  # Seconds between two records: what a process that is killed leaves untold.
_COMPILES = ("tracing", "compiling")  # Phases.
_MARKS = ("evaluation", "checkpoint")  # Belong to the step before them.

SUPERVISED = "DOVETAIL_START"  # Set by a supervisor: the number of the start.

_log = logging.getLogger("dovetail")


class Goodput(Watcher):
    """Accounts for every second: each belongs to the innermost `spent` around it, and outside of any to `becomes`.

    With `open`, the first process of a run keeps the ledger of the run, over all its starts. A ledger that cannot be
    written is said once, and does not end a run: records are sums, so the next one that is written heals it.
    """

    def __init__(self, *, clock: Callable[[], Moment] = now, since: Moment | None = None) -> None:
        self._clock, self._lock = clock, threading.RLock()
        self._file: TextIO | None = None
        self._begin(since or (began() if clock is now else clock()))

    def _begin(self, since: Moment) -> None:
        base: list[Kind] = ["start"]
        self._frames = [base]
        self._first = self._since = since
        self.seconds: dict[Kind, float] = {}
        self._marked: dict[Kind, float] = {}  # The same, when the last step that was made had been made.
        self._step, self._closed, self._is_torn, self._is_told = 0, threading.Event(), False, False
        self._life, self._account, self._is_open = secrets.token_hex(4), Account(), False

    @contextlib.contextmanager
    def spent(self, kind: Kind) -> Iterator[list[Kind]]:
        """What is inside is time of a kind, which `change` can change."""
        frame: list[Kind] = [kind]
        with self._lock:
            self._turn()
            self._frames.append(frame)
        try:
            yield frame
        finally:
            with self._lock:
                self._turn()
                self._frames.pop()
                if frame[0] in _MARKS:
                    self._marked = dict(self.seconds)
            if frame[0] in _MARKS:
                self.record()

    def change(self, frame: list[Kind], kind: Kind) -> None:
        """From now on what is inside of a `spent` is of another kind, if that is not over."""
        with self._lock:
            if any(each is frame for each in self._frames):
                self._turn()
                frame[0] = kind

    def becomes(self, kind: Kind) -> None:
        """What is outside of any `spent` is time of a kind, from now on."""
        self.change(self._frames[0], kind)

    def seconds_of(self, kind: Kind) -> float:
        """Returns how long a kind has taken in this process, up to now."""
        with self._lock:
            self._turn()
            return self.seconds.get(kind, 0.0)

    @property
    def kind(self) -> Kind:
        """What time goes to at the moment."""
        return self._frames[-1][0]

    # What the run tells.

    def started(self, name: str) -> None:
        with self._lock:
            self._turn()
            self._frames.append(["compile" if name in _COMPILES else self.kind])

    def ended(self, name: str, seconds: float | None) -> None:
        with self._lock:
            self._turn()
            self._frames.pop()

    def advanced(self, done: int, total: int, waited: float) -> None:
        with self._lock:
            self._turn()
            self._step, self._marked = done, dict(self.seconds)

    def resumes(self, step: int) -> None:
        """The run goes on after a step: what was done after it is lost."""
        with self._lock:
            self._turn()
            self._step, self._marked = step, dict(self.seconds)
            self.record("resume")

    # The ledger.

    def open(self, directory: Path) -> None:
        """Goes on with the ledger of a run, if this is its first process, and the ledger is not open."""
        if self._is_open or not is_first():
            return
        with self._lock:
            if self._closed.is_set():  # The same trainer runs again.
                self._begin(self._clock())
            file = directory / LEDGER
            self._account, self._is_open = Ledger(file).update(), True
            last = self._account.last
            events, end = read_events(directory, last.events if last else 0)
            try:
                self._file = opened = file.open("a", encoding="utf-8")
                self._is_torn = bool(opened.tell())  # A last line may be: an empty one is passed over.
            except OSError as e:
                self._cannot(e)
            about = {"boot": self._first.boot, "supervised": SUPERVISED in os.environ, "events": end}
            first = {"event": "open", "life": self._life, "wall": self._first.wall, "clock": self._first.clock}
            self._write({**first, **about, "gap": gap(last, self._first, events)})
        threading.Thread(target=self._keep, name="goodput", daemon=True).start()

    def close(self, how: str) -> None:
        """Says goodbye: the run was "done", or "stopped", or has "failed"."""
        self._closed.set()
        with self._lock:
            self.record(ended=how)
            self._is_open = False
            if self._file is not None:
                self._file.close()
                self._file = None

    def record(self, event: str = "", *, ended: str = "") -> None:
        """Writes down what is known."""
        with self._lock:
            self._turn()
            self._write(self._record(event, ended))

    def account(self) -> Account:
        """Returns what the time of the whole run went to, up to now."""
        with self._lock:
            self._turn()
            if self._is_open:
                self._account.add(self._record())
            return self._account

    def _record(self, event: str = "", ended: str = "") -> dict[str, Any]:
        at, now_spent = self._at, {kind: round(seconds, 4) for kind, seconds in self.seconds.items()}
        after = {kind: round(now_spent.get(kind, 0.0) - self._marked.get(kind, 0.0), 4) for kind in LOSABLE}
        record = {"life": self._life, "wall": round(at.wall, 3), "clock": round(at.clock, 4), "step": self._step}
        record |= {"kind": self.kind, "seconds": now_spent, "after": {k: s for k, s in after.items() if s}}
        return record | ({"event": event} if event else {}) | ({"ended": ended} if ended else {})

    def _write(self, record: dict[str, Any]) -> None:
        if not self._is_open:
            return
        self._account.add(record)
        if self._file is None:
            return
        try:
            self._file.write(("\n" if self._is_torn else "") + json.dumps(record, separators=(",", ":")) + "\n")
            self._file.flush()
            self._is_torn = False
        except (OSError, ValueError) as e:
            self._is_torn = True
            self._cannot(e)

    def _cannot(self, error: Exception) -> None:
        if not self._is_told:
            self._is_told = True
            _log.warning("goodput: the ledger cannot be written: %s. The run goes on.", error)

    def _keep(self) -> None:
        closed = self._closed
        while not closed.wait(_EVERY):
            self.record()

    def _turn(self) -> None:
        self._at = self._clock()
        kind, passed = self.kind, self._at.since(self._since)
        self.seconds[kind] = self.seconds.get(kind, 0.0) + passed
        self._since = self._at
