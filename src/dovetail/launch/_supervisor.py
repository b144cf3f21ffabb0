# SPDX-License-Identifier: Apache-2.0
"""`Supervisor`: keeps a gang of processes running on hosts that come and go, until the run is done.

It hears from agents (`Hosts`), runs gangs (`Generation`) and decides by `_gang` what follows. It does not import JAX.
"""

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dovetail.progress import now

from ._exit_codes import BAD_HOST, FAILED, MISTAKE, RESUMABLE
from ._gang import Failure, Retries, Slot, culprit, members, outcome, size, slice_of
from ._generation import TICK, Generation
from ._hosts import Hosts
from ._supervision import Supervision
from ._view import View
from ._watch import Watch

_COLD = 3  # Times that the zygote of each host may die before it is ready.
_PAST = 100  # Failures that a status tells of.
_FIRST = 300.0  # Seconds to wait for hosts at least, before the first gang.
_AWAY = 15.0  # Seconds that a lost host is waited for, where the run can go on without it.


class Supervisor:
    """Runs `arguments` as a gang.

    Args:
        directory: of the launch: logs, stacks, events.
        arguments: of each worker.
        wanted: how many processes.
        least: with how many it goes on if there are no more; they divide `wanted`.
        token: what agents must know.
        environment: of each worker, besides what says who it is.
        patience: seconds to wait for hosts that are needed and not there.
        missing: the exit code when they do not come.
        lost: told of a slot whose agent was given up while it may still run.
        together: how many hosts work only together: those of a slice of TPUs.
    """

    def __init__(
        self,
        rules: Supervision,
        *,
        directory: Path,
        arguments: Sequence[str],
        wanted: int,
        least: int,
        token: str,
        view: View,
        environment: dict[str, str] | None = None,
        patience: float = 300.0,
        missing: int = FAILED,
        lost: Callable[[str], None] = lambda slot: None,
        together: int = 1,
    ) -> None:
        self._rules, self._directory, self._arguments = rules, directory, list(arguments)
        self._wanted, self._least, self._view = wanted, least, view
        self._patience, self._missing, self._together = patience, missing, together
        self._environment = {"DOVETAIL_FULL_PROCESSES": str(wanted), **(environment or {})}
        # An agent sends a sign of life more often than a worker is asked for one.
        self._hosts = Hosts(token, silence=rules.heartbeat, view=view, note=self._note, lost=lost, together=together)
        self._watch, self._retries = Watch(rules), Retries(rules)
        self._events_file = directory / "events.jsonl"
        self._number = last_start(self._events_file)
        self._first = self._number + 1
        self._gang: list[str] = []
        self._failed: Failure | None = None  # The last one.
        self._failures: Sequence[Failure] = ()
        self._stopping = self._is_running = False
        self._why_none = FAILED  # What it means that there is no gang.
        self._past: deque[dict[str, Any]] = deque(maxlen=_PAST)

    async def listen(self, host: str | None = "127.0.0.1", port: int = 0) -> int:
        """Starts to listen for agents, at all addresses of this host if none is named; returns the port."""
        return await self._hosts.listen(host, port)

    def stop(self) -> None:
        """Asks the run to save and to end."""
        self._stopping = True

    def profile(self) -> None:
        """Asks the first process for a profile of its next steps."""
        if self._is_running:
            self._hosts.send(self._gang[0], {"kind": "profile"})

    def status(self) -> dict[str, Any]:
        """Returns how the whole is."""
        now, seen = time.monotonic(), self._watch.seen if self._is_running else {}
        steps, pace = max((each.total for each in seen.values()), default=0), self._watch.pace
        processes = [
            {
                "process": rank,
                "slot": self._gang[rank],
                "host": self._hosts.slots[self._gang[rank]].host,
                "heartbeat_seconds": round(now - each.heard, 3),
                "quiet_seconds": round(now - each.heard + each.quiet, 3),
                "step": each.made,
                "phase": each.phase,
            }
            for rank, each in seen.items()
        ]
        phases = sorted({each.phase for each in seen.values() if each.phase})
        return {
            "phase": ", ".join(phases) or ("training" if self._is_running else "starting"),
            "problem": self._problem(now),
            "step": self._watch.made,
            "steps": steps,
            "seconds_left": round(pace * (steps - self._watch.made), 1) if pace is not None and steps else None,
            "processes": processes,
            "restarts": max(0, self._number - self._first),
            "failures": list(self._past),
        }

    def _problem(self, now: float) -> str:
        """Returns why the run does not go on at the moment; empty if it does."""
        if not self._is_running:
            return f"starting again: {self._past[-1]['text']}" if self._past else ""
        wrong = self._watch.frozen(now) or self._watch.hanging(now)
        return ", ".join(f"process {rank} {text}" for rank, text in wrong.items())

    async def run(self) -> int:
        """Keeps the gang running; returns the exit code of the run."""
        self._note("launched")
        (self._directory / "report.txt").unlink(missing_ok=True)  # Of an earlier launch.
        code: int | None = None
        try:
            while code is None:
                gang = await self._assembled()
                if gang is None:
                    code = RESUMABLE if self._stopping else self._why_none
                else:
                    code = await self._one_generation(gang)
            return code
        finally:
            self._note("over", code=code)
            await self._hosts.close()
            self._view.close()

    async def _assembled(self) -> list[Slot] | None:
        """Returns the members of the next gang, as soon as there are enough; None: there will not be."""
        since, told = time.monotonic(), False
        while not self._stopping:
            self._hosts.look(time.monotonic())
            usable, waited = self._hosts.usable, time.monotonic() - since
            count = size(len(usable), self._wanted, self._least, self._together)
            settled = (not self._gang or waited > TICK) and self._is_settled(waited)
            if count is not None and (count == self._wanted or settled):
                failed = self._failed.slot if self._failed else None
                return members(usable, count, self._gang, failed, self._together)
            if self._hosts.cold >= _COLD * max(len(self._hosts.slots), 1):
                self._report("no host can start a process; the logs say why")
                return None
            is_coming = not self._gang or self._hosts.coming
            if waited > (max(self._patience, _FIRST) if is_coming else self._patience):
                found = f"{len(usable)} of {self._wanted} processes have a host after {waited:.0f} s"
                self._report(f"{found}, and at least {self._least} are needed")
                self._why_none = self._missing
                return None
            if waited > 2.0 and not told and self._gang:
                told = True
                self._view.say(f"waiting for hosts: {len(usable)} of {self._wanted} are there")
            await self._hosts.next_event(TICK)  # Of gangs that are over.
        return None

    def _is_settled(self, waited: float) -> bool:
        """Whether to go on with fewer: at the first start all are waited for; later nobody who is away."""
        return waited > (_AWAY if not self._gang or self._hosts.coming else 0.0)

    async def _one_generation(self, slots: Sequence[Slot]) -> int | None:
        """Runs a gang until it ends; returns the exit code of the run, or None to go on with another."""
        self._number += 1
        self._gang = [slot.name for slot in slots]
        common = {"hosts": self._hosts, "watch": self._watch, "view": self._view, "note": self._note}
        generation = Generation(self._rules, gang=self._gang, number=self._number, **common)
        if not await generation.start(self._arguments, self._environment):
            return None
        self._is_running = True
        await generation.run(stopping=lambda: self._stopping, can_grow=self._can_grow, show=self._show)
        self._is_running = False
        self._hosts.send_leaving_home()
        self._failures = generation.failures
        if generation.failures:
            return await self._after_failure(generation)
        code = outcome([generation.codes[rank] for rank in range(len(self._gang))])
        if code == RESUMABLE and not self._stopping:  # For a host that came or goes, or somebody asked a process.
            self._failed = None
            return None
        return code

    def _can_grow(self) -> bool:
        return (size(len(self._hosts.usable), self._wanted, self._least, self._together) or 0) > len(self._gang)

    async def _after_failure(self, generation: Generation) -> int | None:
        bad = [each for each in generation.failures if generation.codes[each.rank] == BAD_HOST]
        self._failed = first = culprit(bad or generation.failures)
        step, slot = self._watch.made, self._hosts.slots[first.slot]
        slot.failures += 1
        about = {"rank": first.rank, "slot": first.slot, "what": first.kind, "detected": generation.failed_at}
        self._note("failed", **about, step=step, text=first.text[-2000:])
        who = f"process {first.rank} (slot {first.slot}, {slot.host})"
        self._past.append({"time": time.time(), "step": step, "text": f"{who}: {first.kind}: {first.text[:1000]}"})
        when = f"after step {step}" if step else "before the first step of this start"
        self._view.say(f"{who} {when}: {first.kind}\n{first.text}")
        self._view.release(first.rank)
        if generation.codes[first.rank] == MISTAKE or (first.is_echo and MISTAKE in generation.codes.values()):
            return MISTAKE
        lost = slice_of(first.slot, self._together)
        others = sum(slice_of(each.name, self._together) != lost for each in self._hosts.usable)
        can_replace = size(others, self._wanted, self._least, self._together) is not None
        verdict = self._retries.failed(first, step, now=time.monotonic(), can_replace=can_replace)
        computes_wrongly = generation.codes[first.rank] == BAD_HOST
        if computes_wrongly and not can_replace:
            self._report(f"the host of slot {first.slot} computes wrongly, and no other is there in its place")
            return BAD_HOST
        if verdict.action == "end":
            self._report(verdict.reason)
            return FAILED
        if verdict.action == "quarantine" or computes_wrongly:
            slot.quarantined = True
            why = "its host computes wrongly" if computes_wrongly else verdict.reason
            self._note("quarantine", slot=first.slot, why=why)
            self._view.say(f"slot {first.slot} is not used any more: {why}")
        if verdict.delay:
            self._view.say(f"no step since the last failure: trying again in {verdict.delay:.0f} s")
        until = time.monotonic() + verdict.delay
        while time.monotonic() < until and not self._stopping:
            await asyncio.sleep(TICK)
        return None

    def _report(self, reason: str) -> None:
        """Says and writes down why the run ends without being done."""
        lines = [f"The run ends: {reason}."]
        for slot in self._hosts.slots.values():
            state = "quarantined" if slot.quarantined else "ready" if slot.ready else "away"
            lines.append(f"  slot {slot.name} on {slot.host or '?'}: {state}, {slot.failures} failures")
        for failure in self._failures:
            lines.append(f"  process {failure.rank} (slot {failure.slot}): {failure.kind}: {failure.text}")
        lines.append(f"  Logs, stacks and events are in {self._directory}.")
        self._view.say("\n".join(lines))
        (self._directory / "report.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _note(self, event: str, **about: Any) -> None:
        at = now()
        record = {"time": at.wall, "clock": at.clock, "boot": at.boot, "start": self._number, "event": event, **about}
        with self._events_file.open("ab+") as file:
            torn = file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
            file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")

    def _show(self) -> None:
        """Shows how far the whole is."""
        seen = self._watch.seen.values()
        phases = sorted({each.phase for each in seen if each.phase})
        doing = f"  {', '.join(phases)}" if phases else ""
        spares = len(self._hosts.usable) - len(self._gang)
        self._view.status(
            f"step {self._watch.made}/{max(each.total for each in seen) or '?'}  {len(self._gang)} processes"
            f"{f', {spares} spare' if spares > 0 else ''}, {self._number - self._first} restarts{doing}"
        )


def last_start(events: Path) -> int:
    """Returns the number of the last start that is written down; numbers grow over launches. A torn line counts not."""
    if not events.exists():
        return 0
    found = 0
    for line in events.read_bytes().splitlines():
        try:
            found = max(found, int(json.loads(line)["start"]))
        except (ValueError, KeyError, TypeError):
            continue
    return found
