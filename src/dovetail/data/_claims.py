# SPDX-License-Identifier: Apache-2.0
"""Which units of work other hosts are at. A claim saves work, and decides nothing: whoever makes a unit makes the same.

A claim is a file that its holder writes anew every few seconds. One that has not changed for a while, by the clock of
the one who watches it, may be taken; so clocks of two hosts are never compared. The claim of a process that is known to
be gone, as it was on this host, may be taken at once.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable

from dovetail.storage import born, kernel

from ._places import Place

EVERY = 5.0  # Seconds between two signs of life.
PATIENCE = 30.0  # Seconds without one, after which a holder is taken for dead.
CLAIMS = "work/claims"


class Claims:
    """The claims of one preparation."""

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._clock = place, clock
        self._me = {"host": socket.gethostname(), "kernel": kernel(), "pid": os.getpid(), "born": born(os.getpid())}
        self._held: dict[int, float] = {}  # Units, and when their claims were written.
        self._seen: dict[int, tuple[bytes, float]] = {}  # What claims of others were, and since when.

    def take(self, unit: int) -> bool:
        """Claims a unit, and returns whether that worked: nobody else is at it, or nobody who lives."""
        if not self._place.create(_name(unit), self._note()):
            found = self._place.read(_name(unit))
            if found is not None and not self._is_free(unit, found):
                return False
            self._place.write(_name(unit), self._note())
        self._held[unit] = self._clock()
        return True

    def _is_free(self, unit: int, found: bytes) -> bool:
        try:
            note = json.loads(found)
            if note["kernel"] == self._me["kernel"] and born(int(note["pid"])) != note["born"]:
                return True
        except (ValueError, TypeError, KeyError):
            pass  # Not a note, or half of one: it has to stay as it is for a while.
        now = self._clock()
        seen, since = self._seen.get(unit, (b"", now))
        if seen != found:
            self._seen[unit] = found, now
            return False
        return now - since >= PATIENCE

    def renew(self) -> None:
        """Writes the claims that are held anew, where it is time to."""
        now = self._clock()
        for unit, written in self._held.items():
            if now - written >= EVERY:
                self._place.write(_name(unit), self._note())
                self._held[unit] = now

    def release(self, unit: int) -> None:
        """Lets others have a unit, or know it done."""
        if self._held.pop(unit, None) is not None:
            self._place.delete(_name(unit))

    def release_all(self) -> None:
        """Lets others have all units."""
        for unit in list(self._held):
            self.release(unit)

    def _note(self) -> bytes:
        return json.dumps({**self._me, "beat": uuid.uuid4().hex[:8]}).encode()


def _name(unit: int) -> str:
    return f"{CLAIMS}/{unit:07d}"
