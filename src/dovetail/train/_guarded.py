# SPDX-License-Identifier: Apache-2.0
"""Observers that cannot write, on a full disk for one, do not end a run: it is said once, and the run goes on."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ._observers import Observer


class Guarded:
    """An observer, whose errors from the operating system are said once: the first of them."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._is_started = self._has_failed = False

    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        """A run starts or goes on. An observer that cannot start is left out."""
        self._is_started = True
        self._do(lambda: self._observer.start(directory, first_step, last_step, about))
        self._is_started = not self._has_failed

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of one step, by name."""
        self._do(lambda: self._observer.metrics(step, values))

    def text(self, step: int, name: str, value: str) -> None:
        """Something to read."""
        self._do(lambda: self._observer.text(step, name, value))

    def stop(self) -> None:
        """The run has ended."""
        self._do(self._observer.stop)

    def _do(self, work: Callable[[], None]) -> None:
        if not self._is_started:
            return
        try:
            work()
        except OSError as e:
            if not self._has_failed:
                name = type(self._observer).__name__
                print(f"{name} cannot write: {e}. Training goes on; what it does not write is lost.", file=sys.stderr)
            self._has_failed = True
