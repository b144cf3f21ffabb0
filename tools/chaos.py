# SPDX-License-Identifier: Apache-2.0
"""Breaks a run again and again, and checks that it ends as if nothing had happened.

    python tools/chaos.py --injections 100 --seed 1

A launch of four processes is killed, stopped, crashed, hung, slowed down, asked to end; its agents and its supervisor
are killed; its newest checkpoint is damaged; its disk is filled; clocks jump. In the end, weights, optimizer and the
position in the data must be those of an unbroken run, bit for bit, and each row must have been trained on once.
With `--remote` the checkpoints are in a store of objects on loopback, which answers with errors and stalls.
With `--elastic` hosts are lost without a spare: the run goes on with two processes, and grows back. It is compared with
a run of the same changes, planned.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chaos_check import difference, final_history, orphans, rows_trained_on
from chaos_faults import KINDS, LASTING, REMOTE, Fault, plan
from chaos_report import Outcome, report
from support import s3

_RECIPE = f"{Path(__file__).with_name('chaos_run.py')}:run"
_PATIENCE = 240.0  # Seconds for anything to happen; a loaded machine is slow.
_POLL = 0.005
_RESUMABLE = 85
_SUPERVISION = {"heartbeat": 2.0, "hang_least": 3.0, "backoff": 0.2, "max_restarts": 10_000, "same_step": 6}
_DISK = "24m"  # Of the checkpoints, where it is to be filled.


class Launched:
    """A launch that is being broken."""

    def __init__(
        self,
        directory: Path,
        *,
        steps: int,
        processes: int,
        options: Sequence[str],
        disk: bool = False,
        proxy: Any = None,
    ) -> None:
        self.directory, self.control = directory, directory / "control"
        self.run = directory / "run"
        self.checkpoints = self.run / "checkpoints"
        self.events_file = self.run / "launch" / "events.jsonl"
        self.ballast = self.checkpoints / ".ballast" if disk else None
        self.proxy = proxy
        self.where = f"s3://{s3.BUCKET}/{directory.name}" if proxy else str(self.checkpoints)
        self.control.mkdir(parents=True)
        self._steps, self._processes, self._options = steps, processes, list(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._read, self._events = 0, list[dict[str, Any]]()
        self.log = (directory / "launch.log").open("ab")

    def start(self, steps: int | None = None, processes: int | None = None) -> None:
        """Runs `dovetail launch`, the first time or again."""
        count = self._processes if processes is None else processes
        command = [str(Path(sys.executable).with_name("dovetail")), "launch", _RECIPE, "--processes", str(count)]
        command += [f"steps={steps or self._steps}", f"directory={self.run}", f"input.control={self.control}"]
        command += [f"launch.supervision.{name}={value}" for name, value in _SUPERVISION.items()]
        command += [f"checkpoint.directory={self.where}", "checkpoint.request_seconds=5"] if self.proxy else []
        command += ["checkpoint.max_failed_saves=1000"]  # Disks and stores fail for longer than a few quick saves take.
        self._process = subprocess.Popen([*command, *self._options], stdout=self.log, stderr=self.log)

    def wait(self, seconds: float = _PATIENCE) -> int:
        """Waits for the end of the launch; returns its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    @property
    def code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def end(self) -> None:
        """Ends what still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
            self._process.kill()
        self.log.close()

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Returns what the supervisor has written down so far."""
        if self.events_file.exists():
            with self.events_file.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._read += len(data)
            for line in data.splitlines():
                with contextlib.suppress(ValueError):  # Torn, by the death of a supervisor.
                    self._events.append(json.loads(line))
        return [each for each in self._events if not names or each["event"] in names]

    def start_number(self) -> int:
        return max((each["start"] for each in self.events("start")), default=0)

    def is_saving(self) -> Callable[[], bool]:
        """Returns whether a save is going on, as it looks from now on."""
        if self.proxy is None:
            return lambda: any(self.checkpoints.glob("*.tmp"))
        seen = len(self.proxy.requests)
        return lambda: any(each.startswith("PUT") for each in self.proxy.requests[seen:])

    def workers(self) -> dict[int, int]:
        number = self.start_number()
        return {each["rank"]: each["pid"] for each in self.events("process") if each["start"] == number}

    def agents(self) -> list[int]:
        slots = self.events("start")[-1]["slots"]
        newest = {each["slot"]: each["pid"] for each in self.events("host")}
        return [newest[slot] for slot in slots]

    def supervisor(self) -> int:
        return _children(self.launcher())[0]

    def launcher(self) -> int:
        assert self._process is not None
        return self._process.pid

    def step(self) -> int:
        """Returns the last step that the newest gang was given data for."""
        file = self.control / f"given.{self.start_number()}.0"
        with contextlib.suppress(OSError, ValueError, IndexError), file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - 200))
            return json.loads(opened.read().splitlines()[-1])[0]
        return 0


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _until(condition: Callable[[], bool], launched: Launched, what: str) -> bool:
    """Waits for something; returns False if the launch has ended instead."""
    until = time.monotonic() + _PATIENCE
    while not condition():
        if launched.code is not None:
            return False
        if time.monotonic() > until:
            raise TimeoutError(f"waited {_PATIENCE:.0f} s for {what}; the log is {launched.directory / 'launch.log'}")
        time.sleep(_POLL)
    return True


def break_it(launched: Launched, faults: Sequence[Fault], say: Callable[[str], None]) -> list[Outcome]:
    """Does the faults one after the other; returns what came of each."""
    outcomes: list[Outcome] = []
    for number, fault in enumerate(faults):
        following = faults[number + 1] if number + 1 < len(faults) else None
        outcome = _one(launched, fault, hurried=following is not None and following.when == "start")
        if outcome is None:
            say(f"the run was over after {number} of {len(faults)} faults")
            break
        outcomes.append(outcome)
        say(f"{number + 1}/{len(faults)} {outcome.text()}")
    return outcomes


def _one(launched: Launched, fault: Fault, *, hurried: bool) -> Outcome | None:
    """Does one fault, and waits until the run goes on. `hurried`: the next one comes while a gang starts."""
    rng = random.Random(fault.seed)
    before = launched.start_number()
    if not _reach(launched, fault, rng):
        return None
    start = launched.start_number()
    failed = len(launched.events("failed"))
    do, expected = KINDS[fault.kind]
    at = time.monotonic()
    do(launched, rng)
    if expected == "nothing":
        time.sleep(LASTING.get(fault.kind, 0.0))
        if fault.kind == "full" and launched.ballast is not None:
            launched.ballast.unlink()
        if launched.proxy is not None:
            launched.proxy.fault = lambda method, path: None
        return Outcome(fault, start, launched.step(), None, None)
    if expected == "ended":
        code = launched.wait()
        if code == 0:
            return None
        if code != _RESUMABLE:
            raise AssertionError(f"asked to end, the launch ended with {code}, expected {_RESUMABLE}")
        launched.start()
    if not _until(lambda: launched.start_number() > max(start, before), launched, f"a start after {fault}"):
        return None
    detected = [each["detected"] - at for each in launched.events("failed")[failed:] if each.get("detected")]
    first = detected[0] if detected else None
    if hurried:
        return Outcome(fault, start, launched.step(), first, None)
    number = launched.start_number()

    def moving() -> bool:
        return any(each["start"] >= number for each in launched.events("moving"))

    if not _until(moving, launched, f"a step after {fault}"):
        return None
    moved = next(each for each in launched.events("moving") if each["start"] >= number)
    return Outcome(fault, start, moved["step"], first, moved["clock"] - at)


def _reach(launched: Launched, fault: Fault, rng: random.Random) -> bool:
    """Waits for the moment of a fault; returns False if the run ends before it."""
    if fault.when == "start":
        time.sleep(rng.uniform(0.0, 1.5))
        return launched.code is None and _until(lambda: bool(launched.workers()), launched, "a process")

    def moving() -> bool:
        number = launched.start_number()
        return bool(number) and any(each["start"] == number for each in launched.events("moving"))

    def far() -> bool:
        return moving() and launched.step() >= fault.after

    if not _until(far, launched, f"step {fault.after}"):
        return False
    if fault.when == "save":
        if not _until(launched.is_saving(), launched, "a save"):
            return False
        time.sleep(rng.uniform(0.0, 0.03))
    return True


@contextlib.contextmanager
def _disk(path: Path, wanted: bool) -> Iterator[bool]:
    """A small disk of its own for checkpoints, where this machine allows it."""
    path.mkdir(parents=True)
    mounted = (
        wanted
        and (
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(path)], capture_output=True)
        ).returncode
        == 0
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], check=True)


@contextlib.contextmanager
def _store(wanted: bool) -> Iterator[Any]:
    """A store of objects on loopback, behind a proxy that can break what passes through."""
    if not wanted:
        yield None
        return
    with s3.s3_server() as endpoint:
        proxy = s3.Proxy(endpoint)
        os.environ.update(s3.environment(proxy.endpoint))
        try:
            yield proxy
        finally:
            proxy.close()


def _planned(directory: Path, spans: Sequence[tuple[int, int]], options: Sequence[str]) -> str:
    """Runs the same without faults: spans of steps, each with its number of processes. Returns its checkpoints."""
    launched = Launched(directory, steps=spans[-1][0], processes=spans[-1][1], options=options)
    try:
        for steps, processes in spans:
            launched.start(steps, processes)
            if (code := launched.wait(1800)) != 0:
                raise AssertionError(f"the run without faults ended with {code}: {directory / 'launch.log'}")
    finally:
        launched.end()
    return launched.where


def chaos(args: argparse.Namespace, directory: Path, say: Callable[[str], None]) -> tuple[list[Outcome], list[str]]:
    """Returns what came of each fault, and what is wrong in the end."""
    usual = [kind for kind in KINDS if kind not in ("errors", "stall") and (args.disk or kind != "full")]
    usual = ["kill", "agent", "leaving"] if args.elastic else list(REMOTE) if args.remote else usual
    kinds = args.kinds.split(",") if args.kinds else usual
    faults = plan(args.injections, args.seed, args.gap, kinds)
    steps = (args.injections + 1) * args.gap
    options = args.option + (["--min-processes", "2"] if args.elastic else ["--spares", "1"])
    broken = directory / "broken"
    with _disk(broken / "run" / "checkpoints", "full" in kinds) as disk, _store(args.remote) as proxy:
        common = {"disk": disk, "proxy": proxy}
        launched = Launched(broken, steps=steps, processes=args.processes, options=options, **common)
        if not disk:
            faults = [each for each in faults if each.kind != "full"]
        try:
            launched.start()
            outcomes = break_it(launched, faults, say)
            while (code := launched.wait(1800)) == _RESUMABLE:
                launched.start()
        finally:
            launched.end()
        wrong = [] if code == 0 else [f"it ended with {code}"]
        wrong += [f"process {pid} is left: {what}" for pid, what in orphans(launched.run)]
        history = final_history(launched.events("start"), launched.control)
        wrong += rows_trained_on(launched.control, history, steps)
        say("the same without faults ...")
        spans = [(last, processes) for _, last, processes in history] if args.elastic else [(steps, args.processes)]
        wanted = _planned(directory / "planned", spans, args.option)
        wrong += difference(launched.where, wanted)
    return outcomes, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--injections", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--gap", type=int, default=12, help="steps from one fault to the next")
    parser.add_argument("--kinds", help=f"of faults, by default all: {','.join(KINDS)}")
    parser.add_argument("--remote", action="store_true", help="checkpoints in a store of objects, which fails, too")
    parser.add_argument("--elastic", action="store_true", help="lose hosts without a spare")
    parser.add_argument("--no-disk", dest="disk", action="store_false", help="do not mount a small disk to fill")
    parser.add_argument("--option", action="append", default=[], help="for `dovetail launch`, as in checkpoint.keep=5")
    parser.add_argument("--json", type=Path, help="where to write all that happened")
    parser.add_argument("--keep", action="store_true", help="keep the directories of the runs")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    os.environ.setdefault("XDG_CACHE_HOME", str(directory / "cache"))  # Nothing is warm but by what happens here.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"seed {args.seed}, {args.injections} faults, {args.processes} processes, in {directory}", flush=True)
    began = time.monotonic()
    outcomes, wrong = chaos(
        args, directory, lambda text: print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)
    )
    seconds = time.monotonic() - began
    print(report(outcomes, seconds))
    if args.json:
        found = [dataclasses.asdict(each) for each in outcomes]
        args.json.write_text(json.dumps({"seed": args.seed, "seconds": seconds, "outcomes": found}, indent=1) + "\n")
    for text in wrong:
        print(f"WRONG: {text}")
    if wrong or args.keep:
        print(f"The runs are in {directory}.")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{len(outcomes)} faults, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
