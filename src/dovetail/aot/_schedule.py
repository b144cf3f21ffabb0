# SPDX-License-Identifier: Apache-2.0
"""Follows the schedule of a compiled program: what a device spends its time on, and what it waits for.

The text of a compiled program lists instructions in the order in which a device starts them. What runs beside others
is there twice: where it starts, and where it must be done. Time between the two hides it; the rest is waiting. Things
that use the same links run one after the other.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dovetail.ops import is_rare

from ._hlo import Hlo, Instruction, sizes
from ._work import product_flops

_CHANNEL = r"channel_id=(\d+)"
_BODY = r"body=%?([\w.\-]+)"
_FUSED_START, _FUSED_DONE = "async-collective-start", "async-collective-done"  # Names of fusions, on TPUs.


class Cost(NamedTuple):
    """What an instruction takes, each time that it runs."""

    part: str  # What it counts as.
    seconds: float
    channel: str = ""  # What it occupies if it can run beside computation: links, the network, memory.


class Spent(NamedTuple):
    """What a step spends on an instruction, all runs together."""

    instruction: Instruction
    part: str
    seconds: float  # Without what other work hides.
    runs: int


class Stretch:
    """A stretch of a step, all runs together: a loop, or what is between two of them."""

    def __init__(self, runs: int = 0) -> None:
        self.runs = runs  # Of a loop; 0: it is none.
        self.parts = defaultdict[str, float](float)  # Seconds by what they count as; they add up.
        self.beside = defaultdict[str, float](float)  # What ran beside these, and took no time of its own.
        self.names = defaultdict[str, float](float)  # The seconds by what JAX calls that which took them.
        self.inside: list[Stretch] = []  # Of a loop.

    @property
    def seconds(self) -> float:
        """All its time."""
        return sum(self.parts.values())

    def add(self, other: "Stretch") -> None:
        """Adds what another one has."""
        pairs = (self.parts, other.parts), (self.beside, other.beside), (self.names, other.names)
        for mine, theirs in pairs:
            for name, seconds in theirs.items():
                mine[name] += seconds


class Followed(NamedTuple):
    """What a step spends its time on: by instruction, and in the order in which it passes."""

    spent: list[Spent]
    stretches: list[Stretch]


class _Pending(NamedTuple):
    """Something that runs beside other work."""

    cost: Cost
    end: float
    instruction: Instruction


def schedule(program: Hlo, cost: Callable[[Instruction], Cost | None]) -> Followed:
    """Returns where the time of a step goes, in the order of the schedule; loops count as often as they run.

    Args:
        cost: of an instruction; None if it takes no time. What starts is asked about as a whole, what is done is not.
    """
    walker = _Walker(program, cost)
    walker.walk("ENTRY", 1)
    return Followed(walker.spent, walker.stretches)


class _Walker:
    def __init__(self, program: Hlo, cost: Callable[[Instruction], Cost | None]) -> None:
        self.program, self.cost = program, cost
        self.spent: list[Spent] = []
        self.stretches: list[Stretch] = []

    def walk(self, name: str, times: int) -> float:
        """Adds what a computation spends, and returns the seconds of one run."""
        now, free = 0.0, defaultdict[str, float](float)
        pending: dict[str, _Pending] = {}
        for each in self.program.computations.get(name, ()):
            if is_rare(each.op_name):
                continue
            inner = self._inside(each, times)
            if inner is not None:
                now += inner
            elif is_start(each):
                cost = self.cost(each)
                if cost is not None:
                    free[cost.channel] = max(now, free[cost.channel]) + cost.seconds
                    pending[self._key(each)] = _Pending(cost, free[cost.channel], each)
            elif is_done(each):
                began = self._began(each, pending)
                if began is not None:
                    self._beside(began, max(0.0, began.end - now) * times, times)
                if began is not None and began.end > now:
                    self._spend(Spent(began.instruction, began.cost.part, (began.end - now) * times, times))
                    now = began.end
            else:
                cost = self.cost(each)
                if cost is not None:
                    before = now
                    now = (max(now, free[cost.channel]) if cost.channel else now) + cost.seconds
                    free[cost.channel] = now
                    self._spend(Spent(each, cost.part, (now - before) * times, times))
        return now

    def _spend(self, spent: Spent) -> None:
        self.spent.append(spent)
        here = self._here()
        here.parts[spent.part] += spent.seconds
        here.names[self._name(spent.instruction)] += spent.seconds

    def _name(self, each: Instruction) -> str:
        """Returns what JAX calls it, or the first of what is fused in it that has a name."""
        inside = (inner.op_name for called in each.called for inner in self.program.below(called))
        return each.op_name or next(filter(None, inside), "")

    def _beside(self, began: _Pending, waited: float, times: int) -> None:
        hidden = began.cost.seconds * times - waited
        if hidden > 0:
            self._here().beside[began.cost.part] += hidden

    def _here(self) -> Stretch:
        """Returns the stretch that time passes in."""
        if not self.stretches or self.stretches[-1].runs:
            self.stretches.append(Stretch())
        return self.stretches[-1]

    def _loop(self, body: str, times: int, trips: int) -> float:
        """Walks through a loop, which is a stretch of its own; returns the seconds of all its runs."""
        before, self.stretches = self.stretches, []
        seconds = trips * self.walk(body, times * trips)
        loop = Stretch(trips)
        loop.inside = self.stretches
        for each in loop.inside:
            loop.add(each)
        self.stretches = [*before, *([loop] if loop.parts or loop.beside else [])]
        return seconds

    def _inside(self, each: Instruction, times: int) -> float | None:
        """Returns the seconds of what an instruction runs, if it is a loop, a choice or a call; adds what it spends."""
        if each.opcode == "while":
            return self._loop(each.attribute(_BODY) or "", times, self.program.trips(each))
        if each.opcode == "call":
            return sum(self.walk(called, times) for called in each.called)
        if each.opcode != "conditional":
            return None
        branches: list[tuple[float, list[Spent], list[Stretch]]] = []
        before, stretches = self.spent, self.stretches
        for called in each.called:
            self.spent, self.stretches = [], []
            branches.append((self.walk(called, times), self.spent, self.stretches))
        seconds, spent, inside = max(branches, key=lambda branch: branch[0], default=(0.0, [], []))
        self.spent, self.stretches = before + spent, stretches
        for stretch in inside:
            self._here().add(stretch)
        return seconds

    def _key(self, each: Instruction) -> str:
        """Returns what links start and end: for what is fused into other work in pieces, the channel that all name."""
        if each.opcode != "fusion":
            return each.name
        found = (inner.attribute(_CHANNEL) for called in each.called for inner in self.program.below(called))
        return next((f"channel {channel}" for channel in found if channel), each.name)

    def _began(self, each: Instruction, pending: dict[str, _Pending]) -> _Pending | None:
        if each.opcode == "fusion":
            return pending.pop(self._key(each), None)
        name: str | None = each.name
        for _ in range(8):  # A chain of updates, or of parts of a result, leads to the start.
            instruction = self.program.instructions.get(name or "")
            name = next(iter(instruction.operands), None) if instruction else None
            if name in pending:
                return pending.pop(name)
        return None


def is_start(each: Instruction) -> bool:
    """Whether an instruction starts something that others run beside."""
    return each.opcode.endswith("-start") or each.name.startswith(_FUSED_START)


def is_done(each: Instruction) -> bool:
    """Whether an instruction waits for something that was started."""
    return each.opcode.endswith("-done") or each.name.startswith(_FUSED_DONE)


def moved_bytes(each: Instruction, program: Hlo) -> int:
    """Returns the bytes that an instruction reads and writes. Of an array that it slices or updates, just the slice."""
    body = program.computations.get(each.called[0], []) if each.opcode == "fusion" and each.called else None
    if body is None:
        return _moved(each, [_bytes(program, name) for name in each.operands])
    places = {inner.name: int(inner.rest.partition(")")[0]) for inner in body if inner.opcode == "parameter"}
    given = {place: _bytes(program, name) for place, name in enumerate(each.operands)}
    read = sum(_read(name, given.get(place, 0), body) for name, place in places.items())
    updates = [inner for inner in body if inner.opcode == "dynamic-update-slice"]
    written = sum(sizes(each.shape))
    for update in updates:
        whole = sum(sizes(update.shape))
        if whole <= written:
            written += _local(body, update.operands[1]) - whole
    return read + max(0, written)


def copied(each: Instruction, program: Hlo) -> int:
    """Returns the bytes that are copied by what an instruction starts: a copy, or a slice that is read or written."""
    arrays = sizes(each.shape)
    if each.opcode.startswith("dynamic-update-slice"):
        return _bytes(program, each.operands[1])
    if each.opcode.endswith("slice-start"):
        return max(arrays[len(each.operands) :][:1], default=0)  # The result comes after the operands.
    return max(arrays[:1], default=0)


def _moved(each: Instruction, operands: list[int]) -> int:
    written = sum(sizes(each.shape))
    if each.opcode == "dynamic-update-slice":
        return 2 * (operands[1] if len(operands) > 1 else 0)
    return written + (min(written, sum(operands)) if each.opcode in ("dynamic-slice", "gather") else sum(operands))


def _read(name: str, whole: int, body: list[Instruction]) -> int:
    """Returns what a fusion reads of a parameter: all, or just what it slices out of it or leaves as it is."""
    uses = [inner for inner in body if name in inner.operands]
    total = 0
    for use in uses:
        if use.opcode in ("dynamic-slice", "gather"):
            total += sum(sizes(use.shape))
        elif use.opcode in ("bitcast", "reshape") and not use.is_root:
            total += _read(use.name, whole, body)
        elif not (use.opcode == "dynamic-update-slice" and use.operands[0] == name):
            return whole
    return min(total, whole)


def _bytes(program: Hlo, name: str) -> int:
    found = program.instructions.get(name)
    return sum(sizes(found.shape)) if found else 0


def _local(body: list[Instruction], name: str) -> int:
    return next((sum(sizes(inner.shape)) for inner in body if inner.name == name), 0)


def products_of(each: Instruction, program: Hlo) -> Iterator[tuple[Instruction, int, int]]:
    """Yields the products of an instruction, with their operations and over how many numbers each of them sums."""
    for product in (each, *(inner for called in each.called for inner in program.below(called))):
        flops = product_flops(product, program)
        if flops:
            yield product, flops, max(1, flops // (2 * math.prod(product.dims)))
