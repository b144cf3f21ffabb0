# SPDX-License-Identifier: Apache-2.0
"""The record of rollbacks: which batches a run has left out. It is in each checkpoint, beside the position in the data.

Between a rollback and the next checkpoint nothing need be written: a run that dies there goes on from the checkpoint
that it went back to, meets the same spike, and leaves out the same.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

LEFT_OUT = "left_out"  # Its name in the position.


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """What one rollback has left out: batches in the order of the data, counted from 1."""

    step: int  # At which it was found.
    back_to: int  # The step that the run went back to.
    first: int
    last: int
    why: str

    def text(self) -> str:
        """Returns it in a line."""
        batches = f"batch {self.last}" if self.first == self.last else f"batches {self.first} to {self.last}"
        return f"at step {self.step}, back to step {self.back_to}, without {batches}: {self.why}"


def to_json(records: Sequence[LeftOut]) -> list[dict[str, Any]]:
    """Returns records as JSON data."""
    return [dataclasses.asdict(each) for each in records]


def from_json(found: Iterable[dict[str, Any]]) -> tuple[LeftOut, ...]:
    """Returns the records that `to_json` was given."""
    return tuple(LeftOut(**each) for each in found)


def number_of_batches(records: Iterable[LeftOut]) -> int:
    """Returns how many batches are left out: two rollbacks to the same step have some in common.

    >>> number_of_batches([LeftOut(8, 5, 6, 8, "a spike"), LeftOut(7, 5, 6, 10, "a spike")])
    5
    """
    return len({number for each in records for number in range(each.first, each.last + 1)})


def summary(records: Sequence[LeftOut]) -> str:
    """Returns all of them in print."""
    batches = number_of_batches(records)
    head = f"Rollbacks: {len(records)}, which have left out {batches} batch{'es' if batches != 1 else ''}."
    return "\n".join([head, *(f"  {each.text()}" for each in records)])
