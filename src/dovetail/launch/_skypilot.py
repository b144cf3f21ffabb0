# SPDX-License-Identifier: Apache-2.0
"""`SkyPilot`: runs on whatever cloud has the chips, by managed jobs of SkyPilot, which move when chips are lost."""

import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dovetail.config import ConfigError

from ._command import Command, quoted
from ._engine import Engine, awaited
from ._exit_codes import DONE, FAILED, RESUMABLE
from ._launcher import Job
from ._records import JobInfo, Record, State
from ._sky_task import PREFIX, name_of, task_of
from ._yaml import to_yaml

_STATES: Mapping[str, State] = {
    "RUNNING": "running",
    "WINDING_DOWN": "ending",
    "CANCELLING": "ending",
    "SUCCEEDED": "done",
    "CANCELLED": "cancelled",
}


class SkyPilot(Engine):
    """Managed jobs of SkyPilot."""

    class Config(Engine.Config):
        bucket: str = ""  # s3://NAME or gs://NAME: all hosts have it at `mount`, and the run's directory is there.
        mount: str = "/runs"
        spot: Literal["first", "only", "never"] = "first"  # Machines that can be taken away are cheaper.
        infra: Sequence[str] = ()  # Clouds and regions, as SkyPilot names them, as in aws/us-east-1; none: any.
        alternatives: Sequence[str] = ()  # Further hardware that will do, with as many hosts and devices.
        ordered: bool = True  # The cheapest first, by the catalogue. If not, SkyPilot chooses, by its own prices.
        recovery: Literal["EAGER_NEXT_REGION", "FAILOVER"] = "EAGER_NEXT_REGION"
        image: str | None = None  # docker:IMAGE, or one of the cloud; None: SkyPilot's.
        python: str = "python3"  # Of the image, 3.11 or newer; what the run needs is installed beside it.
        setup: Sequence[str] = ()  # Lines of shell that come first, on each host.
        environment: Mapping[str, str] = {}
        port: int = 7077  # Of the supervisor.
        patience: float = 900.0  # Seconds for hosts that were lost to come back.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        cfg.supervision.check()
        self._sky = Command(["sky"], install="Install SkyPilot, and `sky check` the clouds.", error=_error, seconds=900)

    def render(self, job: Job) -> Mapping[str, str]:
        """Returns the task. The bundle lies beside it when it is submitted; the token is given on the command line."""
        return {"task.yaml": to_yaml(task_of(self.cfg, job))}

    def check(self, job: Job) -> str:
        """Asks SkyPilot what it would take, without taking it."""
        return self._with_task(job, "launch", "--dryrun", "--yes")

    def submit(self, job: Job) -> JobInfo:
        """Hands a job over to SkyPilot's controller, which starts machines for it."""
        name = name_of(self.cfg, job)
        ended: tuple[State, ...] = ("done", "failed", "cancelled")
        there = [info for info in self.jobs() if PREFIX + info.name == name and info.state not in ended]
        if there:
            return there[0]
        self._with_task(job, "jobs", "launch", "--yes", "--detach-run")
        found = [info for info in self.jobs() if PREFIX + info.name == name]
        assert job.bundle is not None
        new = JobInfo("", name.removeprefix(PREFIX), "waiting", "handed over", str(job.directory), job.bundle.hash)
        return found[0] if found else new

    def jobs(self) -> Sequence[JobInfo]:
        """Returns the jobs of this user whose names say that they are ours, the newest first."""
        found = self._sky.json("jobs", "queue", "--all", "--output", "json") or []
        ours = [each for each in found if str(each.get("job_name", "")).startswith(PREFIX)]
        return [_info(each) for each in sorted(ours, key=lambda each: -int(each["job_id"]))]

    def logs(self, job: JobInfo, *, follow: bool) -> Iterator[str]:
        """Yields what all hosts print."""
        return self._sky.lines("jobs", "logs", "--follow" if follow else "--no-follow", job.id)

    def cancel(self, job: JobInfo) -> None:
        """Ends a job, and gives its machines back."""
        self._sky.run("jobs", "cancel", "--yes", job.id)

    def resume(self, job: JobInfo, record: Record) -> JobInfo:
        """Does nothing: SkyPilot keeps nothing of a job that has ended."""
        raise ConfigError(
            f"launch: SkyPilot does not keep what job {job.name!r} was.\n"
            "  Launch it again by the same command: it goes on from its newest good state."
        )

    def follow(self, job: JobInfo) -> int:
        """Shows what a job prints until it ends; returns its exit code, as far as SkyPilot tells."""
        for line in awaited(job, self.logs(job, follow=True)):
            print(line, flush=True)
        state = next((info.state for info in self.jobs() if info.id == job.id), "failed")
        return {"done": DONE, "cancelled": RESUMABLE}.get(state, FAILED)

    def _with_task(self, job: Job, *arguments: str) -> str:
        """Runs a command of SkyPilot on the task of a job, in a directory that has the bundle, too."""
        files = self.render(job)
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            for file, text in files.items():
                (directory / file).write_text(text, encoding="utf-8")
            assert job.bundle is not None
            (directory / f"{job.bundle.hash}.tar.gz").write_bytes(job.bundle.packed())
            given = ("--secret", "DOVETAIL_TOKEN", *files)
            token = {"DOVETAIL_TOKEN": secrets.token_hex(32)}
            return self._sky.run(*arguments, *given, variables=token, directory=directory)


def _info(found: Mapping[str, Any]) -> JobInfo:
    status = str(found.get("status", "")).rpartition(".")[2]
    state: State = _STATES.get(status, "failed" if status.startswith("FAILED") else "waiting")
    detail = str(found.get("failure_reason") or status.lower().replace("_", " "))
    name = str(found["job_name"]).removeprefix(PREFIX)
    return JobInfo(str(found["job_id"]), name, state, detail, restarts=int(found.get("recovery_count") or 0))


def _error(what: str, said: str) -> ConfigError:
    return ConfigError(f"{what}: SkyPilot refuses.\n{quoted(said)}")
