# SPDX-License-Identifier: Apache-2.0
"""Decisions about a gang: who is in it, who broke it, and whether it is tried again. Pure: no clock, no process."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from ._exit_codes import BAD_HOST, DONE, MISTAKE, RESUMABLE
from ._supervision import Supervision

_PEER = re.compile(
    r"Gloo|Connection (closed|reset|refused) by peer|coordination|Coordination|heartbeat|barrier|DEADLINE_EXCEEDED|"
    r"UNAVAILABLE|\(Process \d+ of \d+ found this\.\)|another process failed|did not come to save"
)


@dataclasses.dataclass
class Slot:
    """A place where a process can run: a host with its agent."""

    name: str
    host: str = ""
    ready: bool = False  # Its agent is there, and holds a zygote.
    quarantined: bool = False
    leaving: bool = False  # Its host was asked to end.
    failures: int = 0  # Of its processes, ever.

    @property
    def usable(self) -> bool:
        """Whether a process can be started in it."""
        return self.ready and not self.quarantined and not self.leaving


@dataclasses.dataclass(frozen=True)
class Failure:
    """How one process of a gang has failed."""

    rank: int
    slot: str
    kind: Literal["killed", "crashed", "frozen", "hung", "lost", "aborted"]
    text: str  # What is known, for people.

    @property
    def is_echo(self) -> bool:
        """Whether it looks like what happens to a process when another one has failed."""
        return self.kind == "aborted" or (self.kind == "crashed" and bool(_PEER.search(self.text)))


_HOUR = 3600.0
_ORDER = ("lost", "killed", "crashed", "frozen", "hung", "aborted")


def culprit(failures: Sequence[Failure]) -> Failure:
    """Returns the failure that came first in fact: the others follow from it."""
    return min(failures, key=lambda each: (each.is_echo, _ORDER.index(each.kind)))


def size(available: int, wanted: int, least: int, together: int = 1) -> int | None:
    """Returns how many of the processes that there are form a gang: all, or the largest part of them that divides.

    >>> size(5, wanted=4, least=1), size(3, wanted=4, least=1), size(1, wanted=4, least=2)
    (4, 2, None)
    >>> size(15, wanted=16, least=1, together=4)  # Of slices with 4 hosts each, three are whole.
    8
    """
    top = min(available, wanted) // together * together
    fits = (count for count in range(top, 0, -together) if wanted % count == 0)
    found = next(fits, 0)
    return found if found >= least and found else None


def whole(slots: Iterable[Slot], together: int) -> list[Slot]:
    """Returns the slots that are usable, of hosts that only work together: those of slices with all of their hosts."""
    usable = [slot for slot in slots if slot.usable]
    if together == 1:
        return usable
    there = Counter(slice_of(slot.name, together) for slot in usable)
    return [slot for slot in usable if there[slice_of(slot.name, together)] == together]


def slice_of(slot: str, together: int) -> str:
    """Returns the slice that a slot is in: slots are numbered slice by slice."""
    return str(int(slot) // together) if together > 1 else slot


def members(
    slots: Iterable[Slot], count: int, before: Sequence[str], failed: str | None = None, together: int = 1
) -> list[Slot]:
    """Returns the slots of a new gang, by rank: those of the last one keep their ranks, as far as they can.

    A slot whose process has just failed is the last choice: a spare takes its place. Of hosts that only work together,
    a spare slice takes the place of a whole one.
    """
    if together > 1:
        slices: dict[str, list[Slot]] = {}
        for slot in sorted(whole(slots, together), key=lambda each: int(each.name)):
            slices.setdefault(slice_of(slot.name, together), []).append(slot)
        of_last = [slice_of(name, together) for name in before[::together]]
        lost = slice_of(failed, together) if failed is not None else None
        chosen = members([Slot(name, ready=True) for name in slices], count // together, of_last, lost)
        return [slot for each in chosen for slot in slices[each.name]]
    usable = {slot.name: slot for slot in slots if slot.usable}
    preferred = [*(name for name in before if name != failed), *(name for name in usable if name not in before)]
    order = [name for name in dict.fromkeys([*preferred, *usable]) if name in usable][:count]
    ranks: list[str | None] = [name if name in order else None for name in before[:count]]
    ranks += [None] * (count - len(ranks))
    rest = iter([name for name in order if name not in ranks])
    return [usable[name if name is not None else next(rest)] for name in ranks]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What to do after a failure."""

    action: Literal["restart", "quarantine", "end"]
    delay: float = 0.0
    reason: str = ""


class Retries:
    """How often a gang has failed of late, and where."""

    def __init__(self, rules: Supervision) -> None:
        self._rules = rules
        self._at: list[float] = []  # When it has failed, within the last hour.
        self._best, self._without_progress = -1, 0
        self._in_a_row: list[str] = []

    def failed(self, failure: Failure, step: int, *, now: float, can_replace: bool) -> Verdict:
        """Returns what to do after a failure.

        Args:
            step: the last one that was made.
            now: seconds on any clock that only goes forward.
            can_replace: whether the run could go on without the slot that failed.
        """
        rules = self._rules
        self._at = [*(at for at in self._at if now - at < _HOUR), now]
        self._without_progress = 1 if step > self._best else self._without_progress + 1
        self._best = max(self._best, step)
        self._in_a_row = (
            [*self._in_a_row, failure.slot] if self._in_a_row[-1:] in ([], [failure.slot]) else [failure.slot]
        )
        delay = 0.0
        if self._without_progress > 1:
            delay = min(rules.backoff * 2.0 ** (self._without_progress - 2), rules.backoff_most)
        if len(self._in_a_row) >= rules.quarantine_after and can_replace:
            self._in_a_row, self._without_progress = [], 0
            why = f"its processes failed {rules.quarantine_after} times in a row"
            return Verdict("quarantine", delay, why)
        if self._without_progress >= rules.same_step:
            return Verdict("end", reason=f"it failed {self._without_progress} times after step {max(self._best, 0)}")
        if len(self._at) > rules.max_restarts:
            return Verdict("end", reason=f"it failed {len(self._at)} times within an hour")
        return Verdict("restart", delay)


def outcome(codes: Sequence[int]) -> int | None:
    """Returns the exit code of a run whose processes have all ended; None: it failed, and may be tried again."""
    for final in (MISTAKE, BAD_HOST):
        if final in codes:
            return final
    if all(code == DONE for code in codes):
        return DONE
    return RESUMABLE if all(code in (DONE, RESUMABLE) for code in codes) else None
