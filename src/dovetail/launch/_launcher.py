# SPDX-License-Identifier: Apache-2.0
"""`Launcher`: where and how the processes of a run are started. A config like any other."""

import abc
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dovetail.config import Component, ConfigError
from dovetail.hardware import Hardware
from dovetail.progress import Status

from ._bundle import Bundle


class Variant(NamedTuple):
    """One run of several that are launched together: the same job with further overrides, in a directory of its own."""

    directory: Path
    overrides: tuple[str, ...]


class Job(NamedTuple):
    """What is launched."""

    arguments: tuple[str, ...]  # Of `dovetail`, in each process: as in ("train", "tiny-lm", "steps=100").
    directory: Path  # Of the run.
    status: Status = Status()  # Where it is served.
    name: str = ""  # For people, and for the engine.
    hardware: Hardware | None = None  # What it is for, if something is named.
    bundle: Bundle | None = None  # What the hosts of an engine run.
    reads: tuple[str, ...] = ()  # Paths in full, and URLs, that its processes read.
    sweep: tuple[Variant, ...] = ()  # Runs that are launched in place of one; `directory` has what they share.

    def of(self, number: int) -> "Job":
        """Returns one of the runs of a sweep, as a job of its own."""
        one = self.sweep[number]
        arguments = (*self.arguments, *one.overrides)
        return self._replace(arguments=arguments, directory=one.directory, name=f"{self.name}-{number}", sweep=())

    @property
    def logs(self) -> Path:
        """Where the launch keeps logs, stacks and events."""
        return self.directory / "launch"


def check_reads(job: Job, mount: str, who: str) -> None:
    """Raises if a job reads what its hosts do not have: they share what is below one directory, and nothing else."""
    for path in job.reads:
        if "://" not in path and not PurePosixPath(path).is_relative_to(mount):
            raise ConfigError(
                f"launch: the run reads {path!r}, and {who} share only what is below {mount!r} (launch.mount).\n"
                f"  Put it there, or use data in a store: --data s3://BUCKET/NAME."
            )


class Launcher(Component, abc.ABC):
    """The interface."""

    class Config(Component.Config):
        processes: int = 1

    @abc.abstractmethod
    def render(self, job: Job) -> Mapping[str, str]:
        """Returns exactly what would be started, or what an engine would be given, by the name of the file.

        Pure: asks nobody, and writes nothing.
        """

    @abc.abstractmethod
    def launch(self, job: Job) -> int:
        """Runs a job to its end, and returns its exit code."""
