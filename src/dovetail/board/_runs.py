# SPDX-License-Identifier: Apache-2.0
"""`Runs`: what the page asks of runs, wherever they are."""

import abc
from typing import Any, NamedTuple

from ._config import Paths
from ._series import Axis

Answer = dict[str, Any]


class NotFound(Exception):
    """There is no such run, or no such part of it; the message says what."""


class View(NamedTuple):
    """Which part of curves is asked for."""

    name: str
    axis: Axis
    begin: float | None
    end: float | None
    points: int


class Runs(abc.ABC):
    """The interface. Runs are named by ids; one that is not there is `NotFound`. Any thread may call."""

    where: str  # As the user knows it.

    @abc.abstractmethod
    def listed(self) -> Answer:
        """Returns all runs, with `problems` of the whole."""

    @abc.abstractmethod
    def stamps(self) -> dict[str, object]:
        """Returns, by run, what changes when something of it does."""

    @abc.abstractmethod
    def about(self, run: str) -> Answer:
        """Returns a run, the names of what it has logged, and its config."""

    @abc.abstractmethod
    def config(self, run: str) -> Paths:
        """Returns the config of a run as paths and values."""

    @abc.abstractmethod
    def curve(self, run: str, view: View) -> Answer:
        """Returns a metric of a run."""

    @abc.abstractmethod
    def samples(self, run: str, kind: str, name: str, before: int | None, most: int | None = None) -> Answer:
        """Returns what a run has logged besides numbers: `kind` is texts, tables, pictures or histograms."""

    @abc.abstractmethod
    def picture(self, run: str, file: str) -> tuple[str, bytes]:
        """Returns type and content of a picture."""

    @abc.abstractmethod
    def goodput(self, run: str) -> Answer:
        """Returns what the time of a run went to."""

    @abc.abstractmethod
    def memory(self, run: str, on: str | None) -> Answer:
        """Returns what a run takes by module, what is predicted of it and what was measured."""

    @abc.abstractmethod
    def log(self, run: str, lines: int, file: str | None) -> Answer:
        """Returns what a run has printed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what runs."""
