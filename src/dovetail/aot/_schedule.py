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
_SCALAR = 64  # Bytes: what is smaller says where, not what.
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


class _Pending(NamedTuple):
    """Something that runs beside other work."""

    cost: Cost
    end: float
    instruction: Instruction


def schedule(program: Hlo, cost: Callable[[Instruction], Cost | None]) -> list[Spent]:
    """Returns where the time of a step goes, in the order of the schedule; loops count as often as they run.

    Args:
        cost: of an instruction; None if it takes no time. What starts is asked about as a whole, what is done is not.
    """
    walker = _Walker(program, cost)
    walker.walk("ENTRY", 1)
    return walker.spent


class _Walker:
    def __init__(self, program: Hlo, cost: Callable[[Instruction], Cost | None]) -> None:
        self.program, self.cost = program, cost
        self.spent: list[Spent] = []

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
                if began is not None and began.end > now:
                    self.spent.append(Spent(began.instruction, began.cost.part, (began.end - now) * times, times))
                    now = began.end
            else:
                cost = self.cost(each)
                if cost is not None:
                    before = now
                    now = (max(now, free[cost.channel]) if cost.channel else now) + cost.seconds
                    free[cost.channel] = now
                    self.spent.append(Spent(each, cost.part, (now - before) * times, times))
        return now

    def _inside(self, each: Instruction, times: int) -> float | None:
        """Returns the seconds of what an instruction runs, if it is a loop, a choice or a call; adds what it spends."""
        if each.opcode == "while":
            trips = self.program.trips(each)
            return trips * self.walk(each.attribute(_BODY) or "", times * trips)
        if each.opcode == "call":
            return sum(self.walk(called, times) for called in each.called)
        if each.opcode != "conditional":
            return None
        branches: list[tuple[float, list[Spent]]] = []
        before = self.spent
        for called in each.called:
            self.spent = []
            branches.append((self.walk(called, times), self.spent))
        seconds, spent = max(branches, key=lambda branch: branch[0], default=(0.0, []))
        self.spent = before + spent
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
        return min(arrays[: len(each.operands) + 1], default=0, key=lambda size: (size < _SCALAR, size))
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
