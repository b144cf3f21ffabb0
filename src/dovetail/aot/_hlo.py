# SPDX-License-Identifier: Apache-2.0
"""Reads the text of compiled programs: computations, instructions, and how often a step runs each."""

import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dovetail.ops import is_rare

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:to_apply|calls|body|branch_computations|true_computation|false_computation|called_computations)"
    r"=\{?([^,}]+(?:, %[^,}]+)*)\}?"
)
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONSTANT = re.compile(r"s32\[\]\S* constant\((\d+)\)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclass(frozen=True)
class Instruction:
    """One line of a program."""

    name: str
    shape: str  # As the text has it: `bf16[8,128]{1,0}`, or several in parentheses.
    opcode: str
    rest: str  # Operands and attributes.
    is_root: bool = False  # Whether it is the result of its computation.

    @property
    def op_name(self) -> str:
        """Where in the traced program it comes from, as JAX names it; may be empty."""
        match = _OP_NAME.search(self.rest)
        return match.group(1) if match else ""

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions of its result; of several, those of the first."""
        return next((dims for _, dims in dimensions(self.shape)), ())

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        depths = itertools.accumulate(({"(": 1, ")": -1}.get(character, 0) for character in self.rest), initial=1)
        end = next((i for i, depth in enumerate(depths) if not depth), len(self.rest))
        return _OPERAND.findall(self.rest[:end])

    @property
    def called(self) -> list[str]:
        """The computations that it runs."""
        return [name.strip().lstrip("%") for group in _CALLED.findall(self.rest) for name in group.split(",")]

    def attribute(self, pattern: str) -> str | None:
        """Returns the first group of a pattern in operands and attributes."""
        match = re.search(pattern, self.rest)
        return match.group(1) if match else None


class Hlo:
    """A compiled program."""

    def __init__(self, text: str) -> None:
        self.computations = _computations(text)

    @functools.cached_property
    def instructions(self) -> dict[str, Instruction]:
        """All instructions by name, which no two of them share."""
        return {each.name: each for body in self.computations.values() for each in body}

    @functools.cached_property
    def results(self) -> dict[str, Instruction]:
        """For each loop body, by the names of its loop and of its parameter: what it hands to its next run."""
        found: dict[str, Instruction] = {}
        for loop in (each for each in self.instructions.values() if each.opcode == "while"):
            body = self.computations.get(loop.attribute(r"body=%?([\w.\-]+)") or "", ())
            root = next((each for each in body if each.is_root), None)
            if root is not None:
                found |= {each.name: root for each in (loop, *body) if each is loop or each.opcode == "parameter"}
        return found

    @functools.cached_property
    def runs(self) -> Mapping[str, int]:
        """How often a step runs each computation; 0 for what runs rarely, as its scope says."""
        runs: dict[str, int] = defaultdict(int)

        def visit(name: str, times: int) -> None:
            runs[name] += times
            for each in self.computations.get(name, ()):
                if is_rare(each.op_name):
                    continue
                trips = self.trips(each)
                for called in each.called:
                    if called in self.computations:
                        visit(called, times * trips)

        visit("ENTRY", 1)
        return runs

    def below(self, name: str) -> Iterator[Instruction]:
        """Yields the instructions of a computation, and of those that it calls."""
        for each in self.computations.get(name, ()):
            yield each
            for called in each.called:
                yield from self.below(called)

    def trips(self, loop: Instruction) -> int:
        """Returns how often a loop runs: as the compiler says, or by the number that its condition compares with.

        1 for what is no loop.
        """
        condition = _CONDITION.search(loop.rest)
        if condition is None:
            return 1
        known = _TRIPS.search(loop.rest)
        if known:
            return int(known.group(1))
        body = self.computations.get(condition.group(1), ())
        lines = (f"{each.shape} {each.opcode}({each.rest}" for each in body)
        return max((int(n) for line in lines for n in _CONSTANT.findall(line)), default=1)


def dimensions(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns dtype and dimensions of each array of a shape.

    >>> dimensions("(f32[2,3]{1,0}, bf16[])")
    [('f32', (2, 3)), ('bf16', ())]
    """
    return [(dtype, tuple(int(n) for n in dims.split(",") if n)) for dtype, dims in _ARRAY.findall(shape)]


def sizes(shape: str) -> list[int]:
    """Returns the bytes of each array of a shape, without what a layout adds."""
    return [int(_bytes(dtype) * math.prod(dims)) for dtype, dims in dimensions(shape)]


def _bytes(dtype: str) -> float:
    bits = re.search(r"\d+", dtype)
    return int(bits.group()) / 8 if bits else 1


def _computations(text: str) -> dict[str, list[Instruction]]:
    """Returns the instructions of each computation; the entry is called "ENTRY"."""
    bodies: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        start = _COMPUTATION.match(line)
        if start and " = " not in line.split("(", 1)[0]:
            current = bodies.setdefault("ENTRY" if start.group(1) else start.group(2), [])
            continue
        match = _INSTRUCTION.match(line)
        if match:
            root, *fields = match.groups()
            current.append(Instruction(*fields, is_root=root is not None))
        elif current and line and not line[0].isspace() and line != "}":
            current[-1] = _joined(current[-1], line)  # Some attributes have several lines.
    return bodies


def _joined(each: Instruction, line: str) -> Instruction:
    return Instruction(each.name, each.shape, each.opcode, f"{each.rest}\n{line}", each.is_root)
