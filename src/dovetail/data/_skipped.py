# SPDX-License-Identifier: Apache-2.0
"""Documents that could not be used and were left out: counted in the position, and named by their numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ._packing import State

LEAST = 1000  # Documents of a share: of fewer that were read, it is a share of so many.
_KEPT = 8  # Numbers of documents in the position of a stream: the last ones.
_NAME = "skipped"


class Skipped(NamedTuple):
    """A document that was left out."""

    source: str  # The part of a mixture; "" where there is one source.
    document: int  # Its number in the source.
    place: str  # As in `web.jsonl:17`.
    reason: str


class Skips:
    """Counts what one stream leaves out, up to a position: nothing is lost or counted twice when it goes on from one.

    A packer may have read further than its position, to which it would come back.
    """

    def __init__(self, state: State) -> None:
        self._count, self._last = skipped_in(state)
        self._ahead: dict[int, int] = {}  # By number in the stream, the number in the source.

    def add(self, number: int, document: int) -> None:
        """Leaves out the n-th document of the stream."""
        self._ahead[number] = document

    def up_to(self, number: int) -> State:
        """Returns what the position has of it where all documents of the stream before this one are done."""
        done = sorted(n for n in self._ahead if n < number)
        self._count += len(done)
        self._last = [*self._last, *map(self._ahead.pop, done)][-_KEPT:]
        return {_NAME: {"count": self._count, "last": self._last}} if self._count else {}


def joined_skips(states: Sequence[State], num_streams: int) -> list[State]:
    """Returns what positions of so many streams have of it; of another number of streams, the first one has it all."""
    if num_streams == len(states):
        return [{_NAME: state[_NAME]} if _NAME in state else {} for state in states]
    counts, last = zip(*map(skipped_in, states), strict=True)
    numbers = [number for each in last for number in each][-_KEPT:]
    first = {_NAME: {"count": sum(counts), "last": numbers}} if sum(counts) else {}
    return [first, *({} for _ in range(num_streams - 1))]


def skipped_in(state: State | None) -> tuple[int, list[int]]:
    """Returns how many documents were left out up to a position of a stream, and which were the last of them."""
    found: dict[str, Any] = (state or {}).get(_NAME, {"count": 0, "last": []})
    return found["count"], list(found["last"])
