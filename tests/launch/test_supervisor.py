# SPDX-License-Identifier: Apache-2.0
"""Supervisor, agents, zygotes and workers, all real; the workers make steps of `support.lockstep`, without JAX."""

import asyncio
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.launch import BAD_HOST, DONE, FAILED, MISTAKE, RESUMABLE, Supervision, _watch
from dovetail.launch._agent import Agent
from dovetail.launch._supervisor import Supervisor
from dovetail.launch._view import View

RULES = Supervision(heartbeat=2.0, hang_least=1.5, backoff=0.1, grace=20.0, rescue=0.5)
SUPPORT = Path(__file__).parents[1]


class Launch:
    """A launch in this process: its agents are tasks, which can be cancelled like a host that is lost."""

    def __init__(self, directory: Path, processes: int, *, spares=0, least=None, steps=40, faults=(), rules=RULES):
        self.directory, self.slots = directory, [str(slot) for slot in range(processes + spares)]
        arguments = [str(directory), str(steps), json.dumps(list(faults))]
        self.out = io.StringIO()
        logs = directory / "launch"
        logs.mkdir(parents=True, exist_ok=True)
        self.supervisor = Supervisor(
            rules,
            directory=logs,
            arguments=arguments,
            wanted=processes,
            least=least or processes,
            token="secret",
            view=View(self.out),
        )
        self.agents: dict[str, asyncio.Task] = {}
        self.leave: dict[str, Callable[[], None]] = {}

    def come(self, slot: str, token: str = "secret") -> None:
        """Has the agent of a slot come."""
        path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
        zygote = [sys.executable, "-m", "support.lockstep"]
        environment = {**os.environ, "PYTHONPATH": path}
        agent = Agent(slot=slot, directory=self.directory / "launch", zygote=zygote, environment=environment)
        self.leave[slot] = agent.leave
        self.agents[slot] = asyncio.create_task(agent.run(("127.0.0.1", self.port), token))

    async def lose(self, slot: str) -> None:
        """Ends an agent, and all that belongs to it."""
        self.agents[slot].cancel()
        await asyncio.wait([self.agents[slot]])

    async def until(self, event: str, count: int = 1) -> None:
        """Waits until something was noted so often."""
        while sum(each["event"] == event for each in self.events()) < count:
            await asyncio.sleep(0.02)

    def events(self, *names: str) -> list[dict]:
        file = self.directory / "launch" / "events.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [each for each in found if not names or each["event"] in names]

    async def run(self, meanwhile=None) -> int:
        self.port = await self.supervisor.listen()
        for slot in self.slots:
            self.come(slot)
        other = asyncio.create_task(meanwhile(self)) if meanwhile else None
        async with asyncio.timeout(60):
            code = await self.supervisor.run()
        if other:
            await other
        await asyncio.wait(self.agents.values(), timeout=10)
        return code

    def __call__(self, meanwhile=None) -> int:
        return asyncio.run(self.run(meanwhile))

    @property
    def saved(self) -> int:
        return int((self.directory / "saved").read_text())


def test_a_gang_that_does_not_fail_is_run_once(tmp_path):
    launch = Launch(tmp_path, 3)
    assert launch() == DONE
    assert launch.saved == 40
    assert [each["event"] for each in launch.events("start", "failed", "end")] == ["start", "end"]
    assert "step 40 of 40, 3 processes" in launch.out.getvalue()


@pytest.mark.parametrize(
    "do, what, text",
    [
        ("kill", "killed", "was ended by SIGKILL"),
        ("stop", "frozen", r"has not been heard of for 2\.\d s"),
        ("hang", "hung", "hangs: it is after step 12, having begun step 12, where nothing has changed for "),
        ("crash", "crashed", r'Traceback .*File ".*lockstep.py", line .*ArithmeticError: the flux is gone'),
        ("exit 7", "crashed", "ended with exit code 7"),
    ],
)
def test_what_fails_is_named_and_the_gang_goes_on_from_the_last_save(tmp_path, do, what, text):
    launch = Launch(tmp_path, 3, faults=[{"start": 1, "rank": 1, "step": 12, "do": do}])
    assert launch() == DONE
    assert launch.saved == 40
    (failed,) = launch.events("failed")
    assert (failed["rank"], failed["what"]) == (1, what)
    assert re.search(text, failed["text"], re.DOTALL)
    said = launch.out.getvalue()
    assert re.search(rf"launch: process 1 \(slot \d, \S+\) after step 1\d: {what}\n", said)
    assert len(launch.events("start")) == 2


def test_a_process_that_holds_the_others_up_is_named_once_and_not_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(_watch, "_MANY", 3)
    launch = Launch(tmp_path, 2, steps=60, faults=[{"start": 1, "rank": 1, "step": 2, "do": "slow 0.05"}])
    assert launch() == DONE
    named = re.findall(r"slower than the others in its own part of a step: (.*)\n", launch.out.getvalue())
    assert len(named) == len(launch.events("slow")) == 1
    assert re.fullmatch(r"process 1 \(slot 1, \d+\.\dx\)", named[0])
    assert len(launch.events("start")) == 1


@pytest.mark.long
def test_stacks_of_all_processes_are_kept_before_they_are_killed(tmp_path):
    assert Launch(tmp_path, 2, faults=[{"start": 1, "rank": 1, "step": 7, "do": "hang"}])() == DONE
    stacks = [(tmp_path / "launch" / f"{slot}.stacks").read_text() for slot in range(2)]
    assert all("start 1, process" in text and "in run" in text for text in stacks)
    assert sum("in _do" in text for text in stacks) == 1  # The one that hangs; the other waits for it.
    assert sum("in _meet" in text for text in stacks) == 1


def test_a_spare_takes_the_place_of_one_that_fails(tmp_path):
    launch = Launch(tmp_path, 2, spares=1, faults=[{"start": 1, "rank": 0, "step": 8, "do": "kill"}])
    assert launch() == DONE
    before, after = (each["slots"] for each in launch.events("start"))
    assert before[1] == after[1]
    assert before[0] != after[0]


def test_a_lost_host_is_replaced_by_a_spare(tmp_path):
    async def lose(launch):
        await launch.until("moving")
        await launch.lose(launch.events("start")[0]["slots"][1])

    launch = Launch(tmp_path, 2, spares=1, steps=200)
    assert launch(lose) == DONE
    (failed,) = launch.events("failed")
    assert failed["what"] == "lost"
    assert failed["slot"] not in launch.events("start")[1]["slots"]


@pytest.mark.long
def test_it_goes_on_with_fewer_and_grows_back(tmp_path):
    async def lose_and_return(launch):
        await launch.until("moving")
        slot = launch.events("start")[0]["slots"][2]
        await launch.lose(slot)
        await launch.until("moving", 2)
        launch.come(slot)

    launch = Launch(tmp_path, 4, least=2, steps=600)
    assert launch(lose_and_return) == DONE
    assert [each["processes"] for each in launch.events("start")] == [4, 2, 4]
    assert launch.saved == 600
    assert "launch: a host is back: saving" in launch.out.getvalue()


def test_one_that_was_asked_to_end_saves_and_is_resumable(tmp_path):
    async def stop(launch):
        await launch.until("moving")
        launch.supervisor.stop()

    launch = Launch(tmp_path, 2, steps=100_000)
    assert launch(stop) == RESUMABLE
    assert 0 < launch.saved < 100_000


@pytest.mark.long
def test_what_cannot_save_in_time_is_ended_and_the_run_may_go_on_later(tmp_path):
    async def stop(launch):
        await launch.until("moving")
        await asyncio.sleep(0.5)
        launch.supervisor.stop()

    rules = RULES.set(hang_least=60.0, grace=1.0)
    launch = Launch(tmp_path, 2, rules=rules, faults=[{"rank": 1, "step": 7, "do": "hang"}])
    assert launch(stop) == RESUMABLE
    (failed,) = launch.events("failed")
    assert (failed["rank"], failed["text"]) == (1, "did not save within 1 s")
    assert launch.saved == 5


@pytest.mark.long
def test_the_same_step_failing_again_and_again_ends_the_run_with_a_report(tmp_path):
    launch = Launch(tmp_path, 2, faults=[{"rank": 1, "step": 12, "do": "crash"}])
    assert launch() == FAILED
    assert len(launch.events("start")) == RULES.same_step
    report = (tmp_path / "launch" / "report.txt").read_text()
    assert report.startswith("The run ends: it failed 3 times after step 12.\n")
    assert "ArithmeticError: the flux is gone" in report
    assert f"Logs, stacks and events are in {tmp_path / 'launch'}." in report
    assert Launch(tmp_path, 2)() == DONE
    assert not (tmp_path / "launch" / "report.txt").exists()


def test_a_host_that_keeps_failing_is_not_used_any_more(tmp_path):
    # Rank 1 makes a little way each time: it is not the step that fails.
    faults = [{"start": start, "rank": 1, "step": 6 * start, "do": "kill"} for start in (1, 2, 3)]
    launch = Launch(tmp_path, 2, spares=1, steps=60, faults=faults, rules=RULES.set(quarantine_after=1))
    assert launch() == DONE
    quarantined = [each["slot"] for each in launch.events("quarantine")]
    assert quarantined
    assert quarantined[0] == launch.events("failed")[0]["slot"]
    assert all(quarantined[0] not in each["slots"] for each in launch.events("start")[1:])


def test_a_host_that_computes_wrongly_is_replaced_at_once(tmp_path):
    launch = Launch(tmp_path, 2, spares=1, faults=[{"start": 1, "rank": 0, "step": 8, "do": f"exit {BAD_HOST}"}])
    assert launch() == DONE
    (quarantined,) = launch.events("quarantine")
    assert quarantined["why"] == "its host computes wrongly"


def test_of_all_that_report_a_wrong_result_the_one_to_blame_is_replaced_whoever_speaks_first(tmp_path):
    faults = [
        {"start": 1, "rank": 0, "step": 8, "do": "report 0 1"},
        {"start": 1, "rank": 1, "step": 8, "do": f"report 0.05 {BAD_HOST}"},
    ]
    launch = Launch(tmp_path, 2, spares=1, faults=faults)
    assert launch() == DONE
    (failed,) = launch.events("failed")
    (quarantined,) = launch.events("quarantine")
    assert (failed["rank"], quarantined["slot"]) == (1, launch.events("start")[0]["slots"][1])


def test_without_another_host_one_that_computes_wrongly_ends_the_run(tmp_path):
    assert Launch(tmp_path, 1, faults=[{"rank": 0, "step": 3, "do": f"exit {BAD_HOST}"}])() == BAD_HOST


def test_what_the_user_can_mend_is_not_tried_again(tmp_path):
    faults = [{"rank": rank, "step": 3, "do": f"exit {MISTAKE}"} for rank in range(2)]
    launch = Launch(tmp_path, 2, faults=faults)
    assert launch() == MISTAKE
    assert len(launch.events("start")) == 1


def test_an_agent_without_the_token_is_sent_away(tmp_path):
    async def intrude(launch):
        launch.come("intruder", token="guess")
        await launch.until("moving")

    launch = Launch(tmp_path, 1)
    assert launch(intrude) == DONE
    assert {each["slot"] for each in launch.events("host")} == {"0"}


def test_starts_are_numbered_over_launches(tmp_path):
    assert Launch(tmp_path, 1, steps=5)() == DONE
    with (tmp_path / "launch" / "events.jsonl").open("a") as file:
        file.write('{"start": 9')  # Torn.
    with (tmp_path / "launch" / "events.jsonl").open("a") as file:
        file.write("\n")
    assert Launch(tmp_path, 1, steps=10)() == DONE
    lines = (tmp_path / "launch" / "events.jsonl").read_text().splitlines()
    starts = [json.loads(line)["start"] for line in lines if '"event": "start"' in line]
    assert starts == [1, 2]


@pytest.mark.long
def test_a_host_that_is_asked_to_end_is_left_after_a_save(tmp_path):
    async def leave(launch):
        await launch.until("moving")
        launch.leave["0"]()
        launch.leave["1"]()
        launch.come("2")
        launch.come("3")

    launch = Launch(tmp_path, 2, steps=600)
    assert launch(leave) == DONE
    assert {*launch.events("start")[1]["slots"]} == {"2", "3"}
    assert launch.events("failed") == []
    assert re.search(r"launch: the host of slot [01](, [01])? is leaving: saving\n", launch.out.getvalue())
    assert {"0", "1"} <= {each["slot"] for each in launch.events("host lost")}  # It may go now.


@pytest.mark.long
def test_a_process_that_somebody_asks_to_end_is_started_again(tmp_path):
    async def ask(launch):
        await launch.until("moving")
        os.kill(launch.events("process")[0]["pid"], signal.SIGTERM)

    launch = Launch(tmp_path, 2, steps=300)
    assert launch(ask) == DONE
    assert len(launch.events("start")) == 2
    assert launch.events("failed") == []


def test_workers_end_with_their_agent(tmp_path):
    pids = []

    async def lose_all(launch):
        await launch.until("moving")
        stacks = (tmp_path / "launch").glob("*.log")
        assert list(stacks)
        pids.extend(launch.pids())
        for slot in launch.slots:
            await launch.lose(slot)
        launch.supervisor.stop()

    class WithPids(Launch):
        def pids(self):
            return [int(each.name) for each in Path("/proc").glob("[0-9]*") if _is_worker(each, self.directory)]

    assert WithPids(tmp_path, 2, steps=100_000)(lose_all) == RESUMABLE
    assert len(pids) >= 2
    assert not any(_is_worker(Path("/proc") / str(pid), tmp_path) for pid in pids)


def _is_worker(process: Path, directory: Path) -> bool:
    """Whether a process has the log of one of the slots open, and is not a zombie."""
    try:
        return any(os.readlink(each).startswith(f"{directory}/launch/") for each in (process / "fd").iterdir())
    except OSError:
        return False


def test_what_is_killed_while_it_starts_is_started_again(tmp_path):
    (tmp_path / "launch").mkdir()
    launch = Launch(tmp_path, 2, faults=[{"start": 1, "rank": 1, "step": 1, "do": "kill"}])
    assert launch() == DONE
    assert signal.SIGKILL.name in launch.events("failed")[0]["text"]
