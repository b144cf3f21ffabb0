# SPDX-License-Identifier: Apache-2.0
"""Goodput: every second is of one kind, the kinds are those of a reference, and the sum is the wall time of the run."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cli import main
from dovetail.progress import KINDS, LEDGER, Ledger, Moment
from dovetail.train._data_wait import DataWait
from dovetail.train._goodput import SUPERVISED, Goodput

_LOSABLE = {"step", "data_wait", "evaluation", "checkpoint"}


@dataclasses.dataclass
class World:
    """A machine with clocks, and what an onlooker writes down who sees everything: the reference."""

    directory: Path
    wall: float = 1e9
    clock: float = 1e4
    boot: int = 0
    total: float = 0.0
    seen: list[tuple[str, float, int]] = dataclasses.field(default_factory=list)  # Kind, seconds, for which step.

    def now(self) -> Moment:
        return Moment(self.wall, self.clock, str(self.boot))

    def passes(self, seconds: float, kind: str, step: int = 0) -> None:
        self.wall, self.clock, self.total = self.wall + seconds, self.clock + seconds, self.total + seconds
        self.seen.append((kind, seconds, step))

    def note(self, event: str) -> None:
        file = self.directory / "launch/events.jsonl"
        file.parent.mkdir(exist_ok=True)
        record = {"time": self.wall, "clock": self.clock, "boot": str(self.boot), "event": event}
        with file.open("a") as opened:
            opened.write(json.dumps(record) + "\n")

    def goes_on_after(self, step: int) -> None:
        self.seen = [
            ("lost_work", s, 0) if kind in _LOSABLE and of > step else (kind, s, of) for kind, s, of in self.seen
        ]

    def seconds(self) -> dict[str, float]:
        return {kind: sum(s for each, s, _ in self.seen if each == kind) for kind in KINDS}


_TIME = st.floats(0.01, 50.0)
_LIFE = st.fixed_dictionaries(
    {
        "start": _TIME,
        "work": st.lists(st.tuples(st.sampled_from(("step", "save", "evaluate", "compile", "record", "jump")), _TIME)),
        "end": st.sampled_from(("done", "stopped", "failed", "killed")),
        "tail": _TIME,  # From the last record to the end.
        "gap": _TIME,
        "supervised": st.booleans(),
        "reboots": st.booleans(),
        "torn": st.booleans(),
        "forgets": st.integers(0, 2),  # Checkpoints that are damaged when it goes on.
    }
)


@settings(max_examples=100)
@given(lives=st.lists(_LIFE, min_size=1, max_size=5))
def test_every_second_of_any_run_is_of_the_kind_that_an_onlooker_saw_and_they_sum_to_the_wall_time(lives):
    with tempfile.TemporaryDirectory() as directory:
        world, saved, supervised = World(Path(directory)), [0], False
        for number, life in enumerate(lives):
            if life["supervised"]:
                if not supervised:
                    world.note("launched")
                    world.passes(life["gap"], "start")  # Agents and zygotes.
                world.note("start")
            supervised = life["supervised"]
            kept = saved[: max(1, len(saved) - life["forgets"])]
            last = number == len(lives) - 1
            saved = _lived(world, life, kept, last=last)
            if not last:
                _between(world, life, goes_on=lives[number + 1]["supervised"])
            supervised &= not last and lives[number + 1]["supervised"]
        account = Ledger(world.directory / LEDGER).update()
        want, found = world.seconds(), account.seconds
        assert {k: round(s, 2) for k, s in found.items()} == pytest.approx(want, abs=0.02)
        assert account.total == pytest.approx(world.total, rel=0.001, abs=0.01)


def _lived(world: World, life: dict, saved: list[int], *, last: bool) -> list[int]:
    """One life: it tells `Goodput` what it does, and the world looks on. Returns the steps that are saved then."""
    goodput, step = Goodput(clock=world.now), saved[-1]
    world.passes(life["start"], "start")
    os.environ.pop(SUPERVISED, None)
    if life["supervised"]:
        os.environ[SUPERVISED] = "1"
    goodput.open(world.directory)
    os.environ.pop(SUPERVISED, None)
    goodput._closed.set()  # Its thread: records are made here, not by the clock on the wall.
    goodput.record()
    goodput.becomes("step")
    goodput.resumes(step)
    world.goes_on_after(step)
    for what, seconds in life["work"]:
        if what == "step":
            with goodput.spent("data_wait"):
                world.passes(seconds / 7, "data_wait", step + 1)
            world.passes(seconds, "step", step + 1)
            step += 1
            goodput.advanced(step, 100, 0.0)
        elif what == "save":
            with goodput.spent("checkpoint"):
                world.passes(seconds, "checkpoint", step)
            saved = [*(each for each in saved if each < step), step]
        elif what == "evaluate":
            with goodput.spent("evaluation"):
                world.passes(seconds, "evaluation", step)
                goodput.started("compiling")
                world.passes(seconds / 3, "compile")
                goodput.ended("compiling", None)
        elif what == "compile":
            with goodput.spent("compile"):
                world.passes(seconds, "compile")
        elif what == "jump":
            world.wall += 1e4 * (seconds - 25)
        goodput.record()
    if life["end"] == "killed":
        if not last:  # Else nobody has told yet.
            world.passes(life["tail"], "step" if life["supervised"] else "idle", step + 1)
        if life["torn"]:
            with (world.directory / LEDGER).open("a") as file:
                file.write('{"life":"')
        assert goodput._file is not None
        goodput._file.close()
    else:
        world.passes(life["tail"], "step", step + 1)
        goodput.close(life["end"])
    return saved


def _between(world: World, life: dict, *, goes_on: bool) -> None:
    """From the end of a life to the start of the next."""
    if life["supervised"]:
        world.note("failed" if life["end"] in ("failed", "killed") else "end")
        world.passes(life["gap"], "restart")
        if not goes_on:
            world.note("over")
            world.passes(life["gap"], "idle")
        return
    if life["reboots"]:
        world.boot, world.clock = world.boot + 1, 3.0
    world.passes(life["gap"], "idle")


def test_a_run_accounts_for_its_time_in_ledger_and_metrics_and_show_prints_it(unbroken, capsys):
    cfg, _ = unbroken
    file = Path(cfg.directory) / LEDGER
    records = [json.loads(line) for line in file.read_text().splitlines()]
    account = Ledger(file).update()
    assert account.total == pytest.approx(records[-1]["clock"] - records[0]["clock"], rel=0.001)
    assert (records[-1]["ended"], account.starts, account.step, account.lost_steps) == ("done", 1, 6, 0)
    assert all(account.seconds[kind] > 0 for kind in ("start", "compile", "data_wait", "step", "evaluation"))
    assert account.seconds["checkpoint"] > 0
    assert [account.seconds[kind] for kind in ("lost_work", "restart", "idle")] == [0, 0, 0]
    metrics = [json.loads(line) for line in (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()]
    (shares,) = (record for record in metrics if "goodput/step" in record)
    assert sum(shares[f"goodput/{kind}"] for kind in KINDS) == pytest.approx(1.0)
    (said,) = (record["goodput"] for record in metrics if isinstance(record.get("goodput"), str))
    assert said.splitlines()[0].endswith("in one start")

    assert main(["show", cfg.directory, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["goodput"] == account.named()
    assert main(["show", cfg.directory]) == 0
    assert capsys.readouterr().out.endswith(f"{account.text()}\n")


def test_a_ledger_that_cannot_be_written_is_said_once_and_what_follows_heals_it(tmp_path, caplog):
    world = World(tmp_path)
    goodput = Goodput(clock=world.now)
    goodput.open(tmp_path)
    goodput._closed.set()
    file, full = goodput._file, Path("/dev/full").open("w")  # noqa: SIM115
    for opened in (full, full, file):
        goodput._file = opened
        world.passes(5.0, "start")
        goodput.record()
        if opened is full:
            assert Ledger(tmp_path / LEDGER).update().total == 0
    assert Ledger(tmp_path / LEDGER).update().total == pytest.approx(world.total)
    (said,) = (record.getMessage() for record in caplog.records)
    assert said == "goodput: the ledger cannot be written: [Errno 28] No space left on device. The run goes on."
    goodput.close("done")
    with pytest.raises(OSError, match="No space"):
        full.close()


def test_reading_a_batch_is_data_wait_only_while_devices_have_nothing_to_do():
    world = World(Path("."))
    goodput = Goodput(clock=world.now)
    goodput.becomes("step")
    wait, done = DataWait(goodput), Device()
    with wait.around(None):
        world.passes(1.0, "data_wait")
        time.sleep(0.001)  # So that the next one is watched.
    with wait.around(done):  # Devices work for two seconds of three.
        world.passes(2.0, "step")
        done.finish()
        while goodput.kind != "data_wait":
            time.sleep(0.001)
        world.passes(1.0, "data_wait")
        time.sleep(0.001)
    busy = Device()
    with wait.around(busy):  # And all the time.
        world.passes(4.0, "step")
    busy.finish()
    wait.close()
    goodput.record()
    assert goodput.seconds == {kind: s for kind, s in world.seconds().items() if s} | {"start": 0.0}


class Device:
    """The result of a step that is there when a test says so."""

    def __init__(self):
        self._there = threading.Event()

    def finish(self):
        self._there.set()

    def is_ready(self):
        return self._there.is_set()

    def block_until_ready(self):
        assert self._there.wait(60)


def tiny_run(directory: Path, steps: int) -> str:
    """A program that trains, and prints each step that is made."""
    return f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from dovetail.progress import Watcher, program, supervised
from support.runs import evaluated_at_the_end, tiny


class Says(Watcher):
    def started(self, name): pass
    def ended(self, name, seconds): pass
    def advanced(self, done, total, waited): print(done, flush=True)

program("tiny")
with supervised(Says()):
    evaluated_at_the_end(tiny(Path({str(directory)!r}), steps={steps}, save_every=40)).build().run(allow_change=True)
import time
print(time.monotonic())
"""


@pytest.mark.slow
def test_a_run_that_was_killed_and_went_on_accounts_for_all_its_time_within_a_percent(tmp_path):
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", tiny_run(tmp_path, 100_000)], stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            if int(line) == 130:
                process.send_signal(signal.SIGKILL)
                break
    assert process.wait() == -signal.SIGKILL
    time.sleep(2)
    command = [sys.executable, "-c", tiny_run(tmp_path, 200)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    wall = float(said.split()[-1]) - began
    account = Ledger(tmp_path / "run" / LEDGER).update()
    assert account.total == pytest.approx(wall, rel=0.01)
    assert (account.starts, account.step) == (2, 200)
    assert account.lost_steps <= 130 - 80
    assert account.seconds["idle"] >= 2
    assert account.seconds["start"] > 0
    assert account.seconds["lost_work"] > 0
