# SPDX-License-Identifier: Apache-2.0
"""`Launcher`: where and how the processes of a run are started. A config like any other."""

import abc
from pathlib import Path
from typing import NamedTuple

from dovetail.config import Component
from dovetail.progress import Status


class Job(NamedTuple):
    """What is launched."""

    arguments: tuple[str, ...]  # Of `dovetail`, in each process: as in ("train", "tiny-lm", "steps=100").
    directory: Path  # Of the run.
    status: Status = Status()  # Where it is served.

    @property
    def logs(self) -> Path:
        """Where the launch keeps logs, stacks and events."""
        return self.directory / "launch"


class Launcher(Component, abc.ABC):
    """The interface."""

    class Config(Component.Config):
        processes: int = 1

    @abc.abstractmethod
    def launch(self, job: Job) -> int:
        """Runs a job to its end, and returns its exit code."""
