# SPDX-License-Identifier: Apache-2.0
"""`Generation`: one gang, from its start until the last of its processes has ended."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from dovetail.blobs import SPARES

from ._exit_codes import MISTAKE, RESUMABLE, meaning
from ._gang import Failure, culprit
from ._hosts import Hosts
from ._lines import Message
from ._supervision import Supervision
from ._view import View
from ._watch import Watch

TICK = 0.05  # Seconds between two looks at the clock.
_LOOK = 0.25  # The same while nothing happens: what is said is heard at once, and the devices of a host keep its cores.
_COLLECT = 0.15  # Seconds after a failure in which others may turn out to have come first.
_STACKS = 0.15  # Seconds for processes to write their stacks before they are killed.
_DYING = 3.0  # Seconds for the kernel to end what was killed; who takes longer has an agent that is lost.


class Generation:
    """Runs a gang once.

    Args:
        gang: the slots of its processes, by rank.
        number: of this start; it grows.
        note: writes an event down.
    """

    def __init__(
        self,
        rules: Supervision,
        *,
        hosts: Hosts,
        watch: Watch,
        view: View,
        gang: Sequence[str],
        number: int,
        note: Callable[..., None],
    ) -> None:
        self._rules, self._hosts, self._watch, self._view, self._note = rules, hosts, watch, view, note
        self.gang, self._number = list(gang), number
        self.codes: dict[int, int] = {}  # Exit codes, by rank.
        self.failures: list[Failure] = []
        self.failed_at: float | None = None  # When the first failure was noticed.
        self._stop_by: float | None = None  # When those who were asked to end must have ended.
        self._slow: set[int] = set()
        self._is_ending = False  # Who ends from now on was killed here.

    async def start(self, arguments: Sequence[str], environment: dict[str, str]) -> bool:
        """Starts the processes; returns False if the host of the first is not there any more."""
        while not self._hosts.events.empty():
            self._hosts.events.get_nowait()
        address = await self._coordinator()
        if address is None:
            return False
        self._started, reached = time.monotonic(), self._watch.made
        self._watch.restart(len(self.gang), self._started)
        self._note("start", processes=len(self.gang), slots=self.gang)
        for rank, slot in enumerate(self.gang):
            variables = {
                **environment,
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(len(self.gang)),
                "JAX_PROCESS_ID": str(rank),
                "DOVETAIL_START": str(self._number),
                "DOVETAIL_REACHED": str(reached),  # By the gang before: to say how many steps are lost.
                SPARES: json.dumps(self._hosts.memory_of_others(self.gang)),
            }
            what = {"generation": self._number, "rank": rank, "arguments": list(arguments)}
            self._hosts.send(slot, {"kind": "start", **what, "environment": variables})
        return True

    async def _coordinator(self) -> str | None:
        """Returns the address at which the processes find each other, on the host of the first."""
        first = self.gang[0]
        if not self._hosts.is_there(first):
            return None
        self._hosts.send(first, {"kind": "port", "generation": self._number})
        until = time.monotonic() + self._rules.heartbeat
        while (left := until - time.monotonic()) > 0 and self._hosts.is_there(first):
            slot, message = await self._hosts.next_event(left) or ("", {})
            if slot == first and message["kind"] == "port" and message["generation"] == self._number:
                return f"{self._hosts.address(first)}:{message['port']}"
        return None

    async def run(
        self, *, stopping: Callable[[], bool], can_grow: Callable[[], bool], show: Callable[[], None]
    ) -> None:
        """Watches the processes until all have ended; one that fails ends them all."""
        moved, looked = False, 0.0
        while len(self.codes) < len(self.gang):
            await self._listen(_LOOK)
            now = time.monotonic()
            if not moved and self._watch.made:
                moved = True
                self._note("moving", step=self._watch.made, seconds=now - self._started)
            if not self.failures and now - looked < _LOOK:
                continue
            looked = now
            self._judge(now)
            if self.failures:
                await self._end()
                break
            if why := self._why_end(stopping(), moved and can_grow()):
                self._ask_to_end(now, why)
            self._name_slow()
            show()
        self._note("end", codes=[self.codes[rank] for rank in sorted(self.codes)], step=self._watch.made)

    async def _listen(self, seconds: float) -> None:
        """Hears all that is said, and waits for it if nothing is."""
        found = await self._hosts.next_event(seconds)
        while found is not None:
            self._hear(*found)
            found = None if self._hosts.events.empty() else self._hosts.events.get_nowait()

    def _why_end(self, stopping: bool, can_grow: bool) -> str:
        """Returns why the gang should save and end; empty: it should not."""
        if stopping:
            return "asked to end"
        leaving = [slot for slot in self.gang if self._hosts.slots[slot].leaving]
        if leaving:
            return f"the host of slot {', '.join(leaving)} is leaving"
        return "a host is back" if can_grow or self._stop_by is not None else ""

    def _ask_to_end(self, now: float, why: str) -> None:
        if self._stop_by is None:
            self._view.say(f"{why}: saving")
            self._stop_by = now + self._rules.grace
            self._tell("term")
        elif now > self._stop_by:
            self._fail(self._watch.behind()[0], "hung", f"did not save within {self._rules.grace:.0f} s")

    def _tell(self, kind: str, **about: str) -> None:
        for slot in self.gang:
            self._hosts.send(slot, {"kind": kind, **about})

    def _hear(self, slot: str, message: Message) -> None:
        kind, now = message["kind"], time.monotonic()
        if kind == "gone" and slot in self.gang:
            rank = self.gang.index(slot)
            if rank not in self.codes:
                self._fail(rank, "lost", "its host, or its agent, is gone")
                self.codes[rank] = -9
            return
        if message.get("generation") != self._number or slot not in self.gang:
            return
        rank = message["rank"]
        if kind == "beat":
            self._watch.heard(rank, message, now)
        elif kind == "started":
            self._note("process", rank=rank, slot=slot, pid=message["pid"])
        elif kind == "failed":
            self._fail(rank, "crashed", message["text"])
        elif kind == "exited":
            self.codes[rank] = code = message["code"]
            if code < 0:
                aborted, words = code == -6, message["text"]
                self._fail(rank, "aborted" if aborted else "killed", meaning(code) + (f"\n{words}" if aborted else ""))
            elif code not in (0, MISTAKE, RESUMABLE):
                self._fail(rank, "crashed", message["text"] or meaning(code))
            elif code == MISTAKE:
                self.failed_at = self.failed_at or now

    def _fail(self, rank: int, kind: Any, text: str) -> None:
        if self._is_ending or any(each.rank == rank for each in self.failures):
            return
        if not self.failures:
            self.failed_at = time.monotonic()
            self._view.hold()  # Until it is known whose words matter.
        self.failures.append(Failure(rank, self.gang[rank], kind, text))

    def _judge(self, now: float) -> None:
        """Looks for processes that are frozen or hang."""
        self._hosts.look(now)
        if self.codes:  # Some have ended: the others are about to, or are seen to fail.
            return
        for rank, text in self._watch.frozen(now).items():
            self._fail(rank, "frozen", text)
        if not self.failures:
            for rank, text in self._watch.hanging(now).items():
                self._fail(rank, "hung", text)

    async def _end(self) -> None:
        """Ends a gang that has failed: learns who was first, keeps the stacks, kills, and waits until all are gone."""
        begun = self.failed_at or time.monotonic()
        while len(self.codes) < len(self.gang) and (waited := time.monotonic() - begun) < self._rules.rescue:
            await self._listen(TICK)
            met = {each.rank for each in self.failures if each.kind == "crashed"} | self.codes.keys()
            if waited > _COLLECT and len(met) < len(self.gang):
                break  # Those that have met no error cannot come to save.
        if len(self.codes) == len(self.gang):
            return
        self._is_ending = True
        self._tell("dump", why=culprit(self.failures).text[:500])
        await asyncio.sleep(_STACKS)
        self._tell("kill")
        # Two gangs must not be alive at once: they would write the same files.
        until = time.monotonic() + _DYING
        while len(self.codes) < len(self.gang) and time.monotonic() < until:
            await self._listen(TICK)
        for rank, slot in enumerate(self.gang):
            if rank not in self.codes:
                self._hosts.give_up(slot)
                self.codes[rank] = -9

    def _name_slow(self) -> None:
        slow = self._watch.stragglers()
        if slow.keys() - self._slow:
            named = ", ".join(f"process {rank} (slot {self.gang[rank]}, {ratio:.1f}x)" for rank, ratio in slow.items())
            self._view.say(f"slower than the others in its own part of a step: {named}")
            self._note("slow", ranks={rank: round(ratio, 2) for rank, ratio in slow.items()})
            self._slow |= slow.keys()
