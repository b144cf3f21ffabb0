# SPDX-License-Identifier: Apache-2.0
"""`Engine`: what runs jobs on a cluster: Slurm, Kubernetes, SkyPilot. A config like any other.

An engine keeps its jobs by itself, so that the machine from which one was submitted may be closed. What is known of a
job is what the engine says and what lies in the directory of its run; there is no list of jobs of our own.
"""

import abc
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from dovetail.hardware import Hardware
from dovetail.progress import phase

from ._exit_codes import FAILED
from ._launcher import Job, Launcher
from ._records import JobInfo, Record, exit_code_in, record_in
from ._supervision import Supervision


class Engine(Launcher, abc.ABC):
    """The interface."""

    class Config(Launcher.Config):
        name: str = ""  # Of the job; empty: made of the recipe and the hash of the bundle.
        spares: int = 0  # Further hosts, with warm processes that take the place of one that fails.
        min_processes: int | None = None  # With how many it goes on when hosts are lost; None: with all or not at all.
        supervision: Supervision = Supervision()

        def processes_on(self, hardware: Hardware) -> int:
            """Returns how many processes there are on hardware, if nobody says how many: one a host."""
            return hardware.num_hosts

    shares_files: ClassVar[bool] = False  # Whether its hosts have the files of this machine, by the same paths.
    takes_sweeps: ClassVar[bool] = False  # Whether a job with several runs is one job to it; else each is submitted.

    def launch(self, job: Job) -> int:
        """Submits a job, shows what it prints until it ends, and returns its exit code."""
        return self.follow(self.submit(job))

    def follow(self, job: JobInfo) -> int:
        """Shows what a job prints until it ends; returns its exit code."""
        for line in awaited(job, self.logs(job, follow=True)):
            print(line, flush=True)
        code = exit_code_in(Path(job.directory))
        return FAILED if code is None else code

    @abc.abstractmethod
    def check(self, job: Job) -> str:
        """Asks the engine whether it would take the job; returns its answer, or raises a ConfigError with it."""

    @abc.abstractmethod
    def submit(self, job: Job) -> JobInfo:
        """Hands a job over. One that is there already, with the same name and bundle, is returned instead."""

    @abc.abstractmethod
    def jobs(self) -> Sequence[JobInfo]:
        """Returns the jobs of this user that the engine knows and that Dovetail has submitted."""

    @abc.abstractmethod
    def logs(self, job: JobInfo, *, follow: bool) -> Iterator[str]:
        """Yields the lines that a job has printed; `follow`: also those that it prints until it ends."""

    @abc.abstractmethod
    def cancel(self, job: JobInfo) -> None:
        """Ends a job. It saves first, and is not started again."""

    def record(self, job: JobInfo) -> Record | None:
        """Returns what was submitted: as the directory of the run says, unless an engine keeps it by itself."""
        found = record_in(Path(job.directory)) if job.directory else None
        return found if found is not None and found.id == job.id else None

    @abc.abstractmethod
    def resume(self, job: JobInfo, record: Record) -> JobInfo:
        """Starts a job again that has ended, as it was submitted: it goes on from its newest good state."""


def awaited(job: JobInfo, lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines that a job prints; until there is one, it says that it waits for it."""
    lines = iter(lines)
    with phase(f"waiting for {job.name or job.id} to start"):
        first = next(lines, None)
    if first is not None:
        yield first
        yield from lines
