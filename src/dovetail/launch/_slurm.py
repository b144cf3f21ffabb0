# SPDX-License-Identifier: Apache-2.0
"""`Slurm`: a job is a script for `sbatch`, whose hosts run agents, and the first of them the supervisor.

What fails is mended inside the job: a worker is started again, a spare takes the place of a host. Where that is not
enough, as after a preemption, at the time limit, or without the first host, Slurm starts the job again.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from dovetail.config import ConfigError
from dovetail.hardware import Hardware

from ._engine import Engine
from ._launcher import Job
from ._records import JobInfo, Record, cancel_in, is_cancelled, record_in, told
from ._slurm_ask import Away, ask, insist, never_starts, queued, single
from ._slurm_job import script_of
from ._tail import lines_of

_ENDED = ("done", "failed", "cancelled")
_LOOK = 1.0  # Seconds between two questions whether a job is over.


class Slurm(Engine):
    """Jobs of Slurm. Empty fields are left to the cluster."""

    class Config(Engine.Config):
        partition: str = ""
        account: str = ""
        qos: str = ""
        constraint: str = ""  # Features of the hosts, as in "[h100*2&a100*1]".
        gres: str | None = None  # Of a host, as in "gpu:h100:8"; None: as the hardware has chips.
        exclude: str = ""  # Hosts that are not used.
        time: str = ""  # The limit of a start, as in "1-12:00:00". What is left is done in the next one.
        margin: int = 180  # Seconds before that limit in which the run saves.
        exclusive: bool = True  # Whole hosts.
        requeue: bool = True  # Start again what was preempted, came to its limit, or has lost hosts.
        per_host: Literal["1", "chips"] = "1"  # Processes of a host: one, or one for each chip.
        at_once: int = 0  # Of the jobs of a sweep, how many may run; 0: all.
        python: str = ""  # An interpreter of the hosts that has what is needed; empty: one is made if need be.
        setup: Sequence[str] = ()  # Lines of shell that come first, as in ["module load cuda"].
        export: Sequence[str] = ("HOME", "USER", "LANG", "PATH", "TMPDIR")  # Variables that a job is given.
        options: Sequence[str] = ()  # Further options of sbatch, as in ["--nice=100"].
        local: str = "${TMPDIR:-/tmp}"  # Where a host unpacks code.
        patience: float = 30.0  # Seconds that the controller may be away.

        def processes_on(self, hardware: Hardware) -> int:
            return hardware.num_hosts * (math.prod(hardware.host_shape) if self.per_host == "chips" else 1)

    shares_files = True  # The directory of the run, at least.
    takes_sweeps = True  # As an array.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        least = cfg.processes if cfg.min_processes is None else cfg.min_processes
        if cfg.processes < 1 or cfg.spares < 0 or not 1 <= least <= cfg.processes:
            found = f"processes is {cfg.processes}, spares {cfg.spares} and min_processes {least}"
            raise ConfigError(f"launch: {found}, expected 1 or more, 0 or more, and 1 to {cfg.processes}.")
        for name in ("partition", "account", "qos", "constraint", "gres", "exclude", "time", "name"):
            if "\n" in (getattr(cfg, name) or ""):
                raise ConfigError(f"launch: {name} has several lines.")
        cfg.supervision.check()

    def render(self, job: Job) -> Mapping[str, str]:
        return {"job.sh": script_of(self.cfg, job)}

    def check(self, job: Job) -> str:
        return ask("sbatch", "--test-only", text=self.render(job)["job.sh"], seconds=self.cfg.patience)

    def submit(self, job: Job) -> JobInfo:
        assert job.bundle is not None
        about = {"engine": "slurm", "name": job.name, "bundle": job.bundle.hash, "files": dict(self.render(job))}
        runs = [str(each.directory) for each in job.sweep]
        record = Record(id="", directory=str(job.directory), about={"runs": runs}, **about)
        try:
            job.logs.mkdir(parents=True, exist_ok=True)
            with FileLock(job.logs / "submit.lock"):
                if (there := self._there(record)) is None:
                    job.bundle.write(job.directory)
                    return self._submitted(record)
                return there
        except OSError as e:
            raise ConfigError(f"launch: {job.logs} cannot be written: {e.strerror}. Nothing was submitted.") from e

    def _submitted(self, record: Record) -> JobInfo:
        """Submits what is written down, which it may be already if the controller went away meanwhile."""
        until, found = time.monotonic() + self.cfg.patience, None
        while found is None:
            try:
                left = until - time.monotonic()
                answer = ask("sbatch", "--parsable", text=record.files["job.sh"], seconds=left)
                number = answer.strip().splitlines()[0].partition(";")[0]
                found = JobInfo(number, record.name, "waiting", "", record.directory, record.bundle)
            except Away as e:
                if time.monotonic() + _LOOK > until:
                    raise ConfigError(f"{e}\n  Nothing was submitted, as far as can be told from here.") from e
                time.sleep(_LOOK)
                found = self._there(record)
        number = found.id.partition("_")[0]
        self._refuse_what_waits_in_vain(number)
        runs = [("", record.directory), *((f"_{task}", run) for task, run in enumerate(record.about["runs"]))]
        for task, directory in runs:
            log = Path(record.directory) / "launch" / f"job-{number}{task}.log"
            about = {} if task else record.about
            dataclasses.replace(record, id=f"{number}{task}", directory=directory, log=str(log), about=about).write()
        return dataclasses.replace(found, id=number)

    def _refuse_what_waits_in_vain(self, job: str) -> None:
        """Takes a job back that Slurm has accepted, but says it will never start."""
        with contextlib.suppress(Away):
            for each in self._found(job):
                if each.state == "waiting" and (why := never_starts(each)):
                    insist("scancel", job, seconds=self.cfg.patience)
                    raise ConfigError(f"slurm: this would never start: {why}. Nothing is left of it.")

    def _there(self, record: Record) -> JobInfo | None:
        """Returns the job that was submitted as this one; another one in the same place is an error."""
        for each in self._queued():
            if each.directory == record.directory and each.state not in _ENDED:
                if (each.name, each.bundle) == (record.name, record.bundle):
                    array = each.id.partition("_")[0]
                    self._refuse_further_runs(array, record)
                    return dataclasses.replace(each, id=array)
                raise ConfigError(
                    f"launch: job {each.id} ({each.name}) is {each.state} in {each.directory}, and is not this one.\n"
                    f"  End it first, by `dovetail jobs cancel {each.id}`, or give this run a directory of its own."
                )
        return None

    def _refuse_further_runs(self, array: str, record: Record) -> None:
        """Raises if a sweep is to have runs that the array which is there has not: an array does not grow."""
        there = record_in(Path(record.directory))
        if there is None or there.id != array:
            return
        known = there.about.get("runs", ())
        further = [Path(each).name for each in record.about.get("runs", ()) if each not in known]
        if further:
            raise ConfigError(
                f"launch: job {array} ({record.name}) goes on in {record.directory}, without {', '.join(further[:3])}"
                f"{' and others' if further[3:] else ''}.\n  Wait until it has ended, or cancel it: "
                f"`dovetail jobs cancel {array}`."
            )

    def _queued(self) -> list[JobInfo]:
        return queued(self.cfg.patience)

    def jobs(self) -> Sequence[JobInfo]:
        return [_placed(each) for each in single(self._queued())]

    def logs(self, job: JobInfo, *, follow: bool) -> Iterator[str]:
        record = record_in(Path(job.directory))
        where = Path(job.directory) / "launch" / f"job-{job.id}.log"
        where = Path(record.log) if record is not None and record.id == job.id else where
        return lines_of(where, until=lambda: not follow or self._is_over(job), every=_LOOK)

    def _is_over(self, job: JobInfo) -> bool:
        try:
            found = self._found(job.id)
        except ConfigError:
            return False  # The controller is away: the job is not.
        return all(each.state in _ENDED for each in found)

    def _found(self, job: str) -> list[JobInfo]:
        return [each for each in self.jobs() if job in (each.id, each.id.partition("_")[0])]

    def cancel(self, job: JobInfo) -> None:
        alive = [each for each in self._found(job.id) if each.state not in _ENDED]
        for each in alive:
            cancel_in(Path(each.directory), each.id)  # So that it does not come back, whatever happens next.
        for how, running in (((), False), (("--signal=TERM",), True)):
            if ids := [each.id for each in alive if (each.state == "running") == running]:
                insist("scancel", *how, *ids, seconds=self.cfg.patience)

    def resume(self, job: JobInfo, record: Record) -> JobInfo:
        if "_" in record.id:
            raise ConfigError(
                f"launch: job {record.id} is one run of a sweep, which is submitted as a whole.\n"
                "  Launch the sweep again: it goes on with what is missing."
            )
        with FileLock(Path(record.directory) / "launch" / "submit.lock"):
            return self._there(record) or self._submitted(dataclasses.replace(record, id=""))


def _placed(job: JobInfo) -> JobInfo:
    """Returns a job with the directory of its run, if it is one of several, and told as cancelled if it was."""
    array, _, task = job.id.partition("_")
    shared = record_in(Path(job.directory)) if task.isdecimal() else None
    if shared is not None and shared.id == array:
        job = dataclasses.replace(job, directory=shared.about["runs"][int(task)])
    if job.state in ("done", "failed") and is_cancelled(Path(job.directory), job.id):
        return dataclasses.replace(job, state="cancelled", detail=told(Path(job.directory), job.id)[1])
    return job
