# SPDX-License-Identifier: Apache-2.0
"""What the directory of a run says of the job that runs there: for when its engine does not, or not any more.

launch/job.json      what was submitted, to which engine, as what; enough to submit it again
launch/cancelled     the ids of jobs that must not go on, one a line
launch/events.jsonl  what the supervisor has seen, its beginning and its end among it
"""

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from dovetail.progress import json_lines

from ._exit_codes import DONE, RESUMABLE, meaning
from ._tail import lines_of

# "unknown" is a job of an engine that does not answer, if its directory does not say that it is over.
State = Literal["waiting", "running", "ending", "done", "failed", "cancelled", "unknown"]

JOB = Path("launch") / "job.json"
CANCELLED = Path("launch") / "cancelled"
_EVENTS = Path("launch") / "events.jsonl"
_TAIL = 1 << 16
_LOOK = 0.5  # Seconds between two looks whether a job is over.


@dataclasses.dataclass(frozen=True)
class JobInfo:
    """A job as its engine knows it."""

    id: str  # As the engine names it.
    name: str
    state: State
    detail: str = ""  # In the words of the engine: why it waits, on which hosts it runs, how it ended.
    directory: str = ""  # Of its run.
    bundle: str = ""  # The hash of what runs.
    restarts: int = 0  # How often the engine has started it again.


@dataclasses.dataclass(frozen=True)
class Record:
    """What was submitted."""

    engine: str  # As `--via` names it.
    id: str  # As the engine names it; empty while it is being submitted.
    name: str
    directory: str  # Of the run.
    bundle: str = ""  # The hash.
    files: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])  # What the engine was given.
    log: str = ""  # The file with what the job prints, if there is one.
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])  # What else the engine's part needs.

    def write(self) -> None:
        """Writes it into the directory of the run, at once or not at all."""
        write_whole(Path(self.directory) / JOB, json.dumps(dataclasses.asdict(self), indent=1).encode())

    def info(self) -> JobInfo:
        """Returns how the job is, as far as the directory of its run tells."""
        state, detail = told(Path(self.directory), self.id)
        if self.engine == "local" and (pid := self.pid) is not None:
            state, detail = "running", f"process {pid} of this machine"
        elif self.engine == "local" and (host := self._host) != socket.gethostname() and not self._is_over():
            state, detail = "unknown", f"only {host} can tell"
        return JobInfo(self.id, self.name, state, detail, self.directory, self.bundle)

    def unanswered(self) -> JobInfo:
        """Returns how the job is, as far as can be told while its engine does not answer."""
        info = self.info()
        unknown = dataclasses.replace(info, state="unknown", detail=f"{self.engine} does not answer")
        return info if self._is_over() else unknown

    def _is_over(self) -> bool:
        code = exit_code_in(Path(self.directory))
        return code is not None and (self.engine == "local" or code != RESUMABLE)  # An engine may start it again.

    @property
    def _host(self) -> str:
        return self.id.rpartition("-")[0]

    @property
    def pid(self) -> int | None:
        """The process of a local launch, while it runs here; not another one that has its number meanwhile."""
        host, _, number = self.id.rpartition("-")
        if self.engine != "local" or host != socket.gethostname() or not number.isdecimal():
            return None
        began = began_at(int(number))
        return None if began is None or self.about.get("began", began) != began else int(number)

    def lines(self, *, follow: bool) -> Iterator[str]:
        """Yields what the job has printed, as far as its directory has it; `follow`: until a local launch ends."""
        return lines_of(self.printed, until=lambda: not follow or self.pid is None, every=_LOOK)

    @property
    def printed(self) -> Path:
        """The file with what the job prints, or its first process."""
        return Path(self.log) if self.log else Path(self.directory) / "launch" / "0.log"

    def end(self) -> None:
        """Asks a local launch to save, and to end."""
        cancel_in(Path(self.directory), self.id)
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):  # It has just ended.
                os.kill(pid, signal.SIGTERM)


def began_at(pid: int) -> int | None:
    """Returns when a process has begun, in ticks since this machine was started; None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # Its name is before, in brackets, whatever that is.
    return None if state in "ZX" else int(fields[18])


def record_in(directory: Path) -> Record | None:
    """Returns what was submitted for a run; None if nothing was, or what is written is not readable."""
    try:
        found = json.loads((directory / JOB).read_text("utf-8"))
        known = {field.name for field in dataclasses.fields(Record)}
        record = Record(**{name: value for name, value in found.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    texts = (record.engine, record.id, record.name, record.directory, record.bundle, record.log)
    tables = (record.files, record.about)
    return record if all(isinstance(x, str) for x in texts) and all(isinstance(x, dict) for x in tables) else None


def records_below(directory: Path, depth: int = 4) -> Iterator[Record]:
    """Yields what was submitted for runs below a directory, in the order of their names."""
    if (found := record_in(directory)) is not None:
        yield found
    if depth:
        with contextlib.suppress(OSError):
            for each in sorted(directory.iterdir()):
                if each.is_dir() and not each.is_symlink() and each.name not in ("launch", "checkpoints"):
                    yield from records_below(each, depth - 1)


def cancel_in(directory: Path, job: str) -> None:
    """Writes down that a job must not go on."""
    (directory / CANCELLED).parent.mkdir(parents=True, exist_ok=True)
    with (directory / CANCELLED).open("a", encoding="utf-8") as file:
        file.write(f"{job}\n")


def is_cancelled(directory: Path, job: str) -> bool:
    """Whether a job must not go on."""
    try:
        return bool(job) and job in (directory / CANCELLED).read_text("utf-8", errors="replace").split("\n")
    except OSError:
        return False


def told(directory: Path, job: str) -> tuple[State, str]:
    """Returns state and detail of a job that its engine does not know, from what the directory of its run says."""
    last = last_event(directory, "launched", "over", "start")
    cancelled = is_cancelled(directory, job)
    if last is None:
        return ("cancelled", "it never ran") if cancelled else ("failed", "nothing is known of it: see its log")
    if last["event"] != "over":
        return "cancelled" if cancelled else "failed", f"it was lost: the last thing known is {last['event']!r}"
    code = last.get("code")
    if code == DONE:
        return "done", ""
    if cancelled:
        return "cancelled", "it has saved" if code == RESUMABLE else ""
    return "failed", meaning(code) if isinstance(code, int) else "its supervisor was ended"


def exit_code_in(directory: Path) -> int | None:
    """Returns the exit code of the run, if it is over."""
    last = last_event(directory, "launched", "over", "start")
    code = last.get("code") if last is not None and last["event"] == "over" else None
    return code if isinstance(code, int) else None


def last_event(directory: Path, *names: str) -> dict[str, Any] | None:
    """Returns the last event of some kinds that the supervisor wrote down of late. A torn line counts not."""
    events = reversed([*json_lines(directory / _EVENTS, tail=_TAIL)])
    return next((found for found in events if found.get("event") in names), None)


def write_whole(file: Path, data: bytes) -> None:
    """Writes a file so that others see all of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{secrets.token_hex(8)}.new")
    try:
        new.write_bytes(data)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
