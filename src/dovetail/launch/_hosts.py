# SPDX-License-Identifier: Apache-2.0
"""`Hosts`: the agents that have come, each for its slot; who is heard of, who is lost, and what they say."""

import asyncio
import hmac
import time
from collections.abc import Callable, Collection
from typing import Any

from ._gang import Slot, whole
from ._lines import LIMIT, Message, messages, packed
from ._view import View

_GOING = 5.0  # Seconds for agents to go home.


class Hosts:
    """Listens for agents. What they say of their workers goes to `events`, with their slot.

    Args:
        token: what an agent must know.
        silence: seconds after which one that says nothing is lost: it is frozen, or cannot be reached.
        note: writes an event down.
        lost: told of a slot whose agent was given up while it may still run.
        together: how many hosts, by number, work only together.
    """

    def __init__(
        self,
        token: str,
        *,
        silence: float,
        view: View,
        note: Callable[..., None],
        lost: Callable[[str], None] = lambda slot: None,
        together: int = 1,
    ) -> None:
        self._token, self._silence, self._view, self._note, self._lost = token, silence, view, note, lost
        self._together = together
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._heard: dict[str, float] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self.slots: dict[str, Slot] = {}
        self.about: dict[str, Message] = {}  # What each agent that is there has said of itself.
        self.cold = 0  # Zygotes that have died since the last one that was ready.
        self.events: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()

    async def listen(self, host: str | None, port: int = 0) -> int:
        """Starts to listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=LIMIT)
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Sends all agents home."""
        self._server.close()
        for slot in list(self._writers):
            self.send(slot, {"kind": "end"})
        if self._serving:
            await asyncio.wait(self._serving, timeout=_GOING)

    def is_there(self, slot: str) -> bool:
        """Whether the agent of a slot is connected."""
        return slot in self._writers

    def address(self, slot: str) -> str:
        """Returns the address of the host of a slot, as others reach it."""
        return self._writers[slot].get_extra_info("peername")[0]

    def memory_of_others(self, gang: Collection[str]) -> dict[str, str]:
        """Returns where the memory of hosts is served that are there and have no part in a gang, by slot."""
        return {slot: str(about["memory"]) for slot, about in self.about.items() if slot not in gang}

    @property
    def usable(self) -> list[Slot]:
        """Slots in which a process can be started, in the order of their numbers: neighbours stay neighbours."""
        return whole([self.slots[name] for name in sorted(self.slots, key=_number)], self._together)

    @property
    def coming(self) -> bool:
        """Whether one whose agent is there is about to be usable."""
        return any(name in self._writers and not (each.ready or each.quarantined) for name, each in self.slots.items())

    def send(self, slot: str, message: Message) -> None:
        """Tells an agent something, if it is there."""
        if (writer := self._writers.get(slot)) is not None:
            writer.write(packed(message))

    def give_up(self, slot: str) -> None:
        """Takes an agent for lost. If it is not, it finds its connection closed, and ends its worker."""
        if (writer := self._writers.get(slot)) is not None:
            writer.transport.abort()
            self._gone(slot, writer)
            self._lost(slot)

    def send_leaving_home(self) -> None:
        """Lets those agents go that are leaving and have no worker any more."""
        for name, slot in self.slots.items():
            if slot.leaving:
                self.send(name, {"kind": "end"})

    def look(self, now: float) -> None:
        """Gives up agents that say nothing any more."""
        for slot, heard in list(self._heard.items()):
            if slot in self._writers and now - heard > self._silence:
                self.give_up(slot)

    async def next_event(self, seconds: float) -> tuple[str, Message] | None:
        """Returns what is said next, or None if nothing is for a while."""
        try:
            async with asyncio.timeout(seconds):
                return await self.events.get()
        except TimeoutError:
            return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, task = "", asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        async for message in messages(reader):
            if not name:
                if not self._is_ours(message):
                    break
                name = str(message["slot"])
                slot = self.slots.setdefault(name, Slot(name))
                slot.host, slot.ready, slot.leaving = str(message["host"]), False, False
                self._writers[name], self.about[name] = writer, message
                self._note("host", slot=name, host=slot.host, pid=message["pid"])
            elif self._writers.get(name) is not writer:
                break  # It was given up.
            self._heard[name] = time.monotonic()
            self._take(name, message)
        if name:
            self._gone(name, writer)
        writer.close()

    def _is_ours(self, message: Message) -> bool:
        return message["kind"] == "hello" and hmac.compare_digest(str(message.get("token", "")), self._token)

    def _take(self, name: str, message: Message) -> None:
        match message["kind"]:
            case "ready":
                self.slots[name].ready, self.cold = True, 0
            case "leaving":
                self.slots[name].leaving = True
                self._note("leaving", slot=name)
            case "cold":
                self.slots[name].ready = False
                self.cold += 1
                self._view.say(f"slot {name}: the process that workers are forked from has died; its log says more")
            case "log":
                self._view.log(message["rank"], message["lines"])
            case "hello" | "alive":
                pass
            case _:
                self.events.put_nowait((name, message))

    def _gone(self, name: str, writer: Any) -> None:
        if self._writers.get(name) is writer:
            del self._writers[name], self.about[name]
            self.slots[name].ready = False
            self.events.put_nowait((name, {"kind": "gone"}))
            self._note("host lost", slot=name)


def _number(slot: str) -> tuple[int, str]:
    return len(slot), slot
