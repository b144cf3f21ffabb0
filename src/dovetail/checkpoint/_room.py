# SPDX-License-Identifier: Apache-2.0
"""Saves that fail and disks that fill: said early, said clearly, and the end of a run only when it goes on."""

import logging

from ._errors import CheckpointError
from ._layout import Plan
from ._store import Store

_log = logging.getLogger(__name__)


class Room:
    """How much a step needs, how much there is, and how many saves in a row have failed."""

    def __init__(self, store: Store, most: int) -> None:
        self._store, self._most = store, most
        self._needed = self._failed = 0
        self._is_warned = False

    def needs(self, plan: Plan, rest: int) -> None:
        """Notes what a step needs; warns before the first one that does not fit. Of the first process."""
        is_first, self._needed = not self._needed, rest + sum(map(plan.size_of, plan.writers))
        if is_first:
            self.look_ahead()

    def look_ahead(self) -> None:
        """Warns if the next save does not fit, once until it fits again."""
        lacks = self.lack()
        if lacks and not self._is_warned:
            _log.warning("checkpoint %s: the next save will not fit. %s", self._store.where, lacks)
        self._is_warned = bool(lacks)

    def lack(self) -> str:
        """Returns what a step needs and what is free, if it does not fit."""
        free = self._store.free()
        if free is None or free >= self._needed:
            return ""
        return f"A step needs {self._needed:,} bytes, {free:,} are free in {self._store.where}."

    def saved(self) -> None:
        """A save has reached the store."""
        self._failed = 0

    def failed(self, error: CheckpointError) -> None:
        """A save has failed, which has been said; raises it if that were too many in a row."""
        self._failed += 1
        if self._failed >= self._most:
            count = f"\n  {self._failed} saves in a row have failed (max_failed_saves)." if self._most > 1 else ""
            raise type(error)(f"{error}{count}") from error
        _log.warning("save %d in a row has failed, of %d that may: training goes on.", self._failed, self._most - 1)
