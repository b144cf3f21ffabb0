# SPDX-License-Identifier: Apache-2.0
"""Asking Slurm: its programs are run, what they say is read, and a controller that is away is waited for a while."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.config import ConfigError

from ._records import JobInfo, State

_AWAY = re.compile(
    r"(?i)unable to contact slurm|connect failure|connection refused|timed out|zero bytes were transmitted|"
    r"temporarily|socket error|communication|connection reset|backup controller"
)
_NEVER = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints")
_MARK = "dovetail"  # What the comment of our jobs begins with.
_AGAIN = 1.0  # Seconds between two tries.
_STATES: Mapping[str, State] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_FED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
    "RESV_DEL_HOLD": "waiting",
    "SUSPENDED": "waiting",
    "RUNNING": "running",
    "COMPLETING": "ending",
    "SIGNALING": "ending",
    "STAGE_OUT": "ending",
    "STOPPED": "ending",
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
}


class Away(ConfigError):
    """The controller did not answer. What was asked may have been done."""


def ask(*command: str, text: str | None = None, seconds: float) -> str:
    """Returns what a program of Slurm prints; a ConfigError with its words if it fails, `Away` if nobody answers."""
    if shutil.which(command[0]) is None:
        raise ConfigError(f"slurm: there is no {command[0]} here. Run this where Slurm's programs are installed.")
    try:
        done = subprocess.run(
            command,
            input=text or "",
            capture_output=True,
            text=True,
            timeout=max(seconds, 1.0),
            check=False,
            env={**os.environ, "SLURM_BITSTR_LEN": "0"},  # The numbers of all tasks, however many there are.
        )
    except subprocess.TimeoutExpired as e:
        raise Away(f"slurm: {command[0]} did not end within {seconds:.0f} s.") from e
    except OSError as e:
        raise ConfigError(f"slurm: {command[0]} cannot be run: {e.strerror}.") from e
    if done.returncode:
        words = said(done.stderr or done.stdout)
        raise (Away if _AWAY.search(words) else ConfigError)(f"slurm: {words or f'{command[0]} failed'}")
    return done.stdout if command[0] != "sbatch" else f"{done.stdout}{said(done.stderr)}"


def insist(*command: str, seconds: float) -> str:
    """Does `ask`, again and again while the controller is away, as long as `seconds`. For what may be done twice."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask(*command, seconds=max(until - time.monotonic(), 1.0))
        except Away as e:
            if time.monotonic() + _AGAIN > until:
                raise ConfigError(f"{e}\n  Its controller was tried for {seconds:.0f} s.") from e
            time.sleep(_AGAIN)


def said(text: str) -> str:
    """Returns what a program of Slurm has to say, without what precedes each line.

    >>> said("sbatch: error: invalid partition specified: x\\nsbatch: error: Batch job submission failed: Invalid name")
    'invalid partition specified: x; Batch job submission failed: Invalid name'
    """
    lines = [re.sub(r"^\w+: ((error|fatal|warning): )?", "", line.strip()) for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))


def comment(bundle: str, directory: str) -> str:
    """Returns the comment by which a job is found again.

    >>> of_comment(comment("ab12", "/runs/a b"))
    ('ab12', '/runs/a b')
    """
    return f"{_MARK} {bundle} {directory}"


def of_comment(text: str) -> tuple[str, str] | None:
    """Returns the bundle and the directory that a comment names; None if it is not one of ours."""
    mark, _, rest = text.partition(" ")
    bundle, _, directory = rest.partition(" ")
    return (bundle, directory) if mark == _MARK and directory else None


def never_starts(job: JobInfo) -> str:
    """Returns why a job that waits will do so for ever, in Slurm's word; empty if it may start one day."""
    return next((reason for reason in _NEVER if f"({reason})" in job.detail), "")


def queued(seconds: float) -> list[JobInfo]:
    """Returns the jobs of this user that Slurm knows and that Dovetail has submitted."""
    return jobs_in(insist("squeue", "--me", "--states=all", "--array", "--json", seconds=seconds))


def jobs_in(text: str) -> list[JobInfo]:
    """Returns our jobs in the answer of `squeue --json`, of any version."""
    try:
        jobs: Sequence[Mapping[str, Any]] = json.loads(text)["jobs"]
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"slurm: squeue --json printed what is not understood: {text[:100]!r}.") from e
    mine = [each for each in jobs if each.get("user_id", os.getuid()) == os.getuid()]  # Some versions print all.
    return [_job(each) for each in mine if of_comment(_text(each.get("comment")))]


def single(jobs: Sequence[JobInfo]) -> list[JobInfo]:
    """Returns jobs with those of an array that wait together, as in `7_[2-4,8%2]`, one by one."""
    found: list[JobInfo] = []
    for job in jobs:
        array, bracket, tasks = job.id.removesuffix("]").partition("_[")
        ids = [f"{array}_{task}" for task in tasks_in(tasks)] if bracket else [job.id]
        found += [dataclasses.replace(job, id=each) for each in ids]
    return found


def tasks_in(text: str) -> list[int]:
    """Returns the numbers that stand for the tasks of an array. Slurm cuts a long text short; what is cut is not there.

    >>> tasks_in("2-4,8,10-14:2%2")
    [2, 3, 4, 8, 10, 12, 14]
    >>> tasks_in("1,3,5,7,...")
    [1, 3, 5, 7]
    """
    found: list[int] = []
    for each in text.partition("%")[0].split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", each):
            first, last, step = match.groups()
            found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def _job(job: Mapping[str, Any]) -> JobInfo:
    bundle, directory = of_comment(_text(job["comment"])) or ("", "")
    array, task = _number(job.get("array_job_id")), _number(job.get("array_task_id"))
    states = job["job_state"] if isinstance(job["job_state"], list) else [job["job_state"]]
    state = _state(states)
    reason = _text(job.get("state_reason"))
    words = [" ".join(states).lower().replace("_", " ")]
    words += [f"({reason})"] if reason not in ("", "None") else []
    words += [f"on {job['nodes']}"] if job.get("nodes") else []
    many = _text(job.get("array_task_string"))
    identity = f"{array}_{task}" if array and task is not None else f"{array}_[{many}]" if array and many else ""
    restarts = _number(job.get("restart_cnt")) or 0
    name, number = _text(job.get("name")), str(_number(job["job_id"]))
    return JobInfo(identity or number, name, state, " ".join(words), directory, bundle, restarts)


def _state(states: Sequence[str]) -> State:
    found: list[State] = [_STATES.get(each, "failed") for each in states]
    return "ending" if "ending" in found else "waiting" if "REQUEUED" in states else found[0]


def _number(value: Any) -> int | None:
    """Returns a number as any version of Slurm writes it."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value.get("set") else None
    return None if value in (None, "") else int(value)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return _text(value.get("job", value.get("string", "")))  # As newer versions have comments.
    return "" if value is None else str(value)
