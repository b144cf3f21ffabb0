# SPDX-License-Identifier: Apache-2.0
"""Observers that cannot write, on a full disk for one, do not end a run: it is said once, and the run goes on."""

from collections.abc import Callable, Mapping
from pathlib import Path

from dovetail.config import ConfigBase
from dovetail.progress import note

from ._evaluator import Findings
from ._observer import Cell, Observer


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

    def config(self, cfg: ConfigBase, facts: Mapping[str, Cell]) -> None:
        """What the run is."""
        self._do(lambda: self._observer.config(cfg, facts))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of one step, by name."""
        self._do(lambda: self._observer.metrics(step, values))

    def text(self, step: int, name: str, value: str) -> None:
        """Something to read."""
        self._do(lambda: self._observer.text(step, name, value))

    def shows(self, step: int, found: Findings) -> None:
        """What an evaluator has found to look at."""
        for name, png in found.pictures.items():
            self._do(lambda name=name, png=png: self._observer.picture(step, name, png))
        for name, each in found.histograms.items():
            self._do(lambda name=name, each=each: self._observer.histogram(step, name, *each))
        for name, each in found.tables.items():
            self._do(lambda name=name, each=each: self._observer.table(step, name, *each))

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
                note(f"{name} cannot write: {e}. Training goes on; what it does not write is lost.", always=True)
            self._has_failed = True
