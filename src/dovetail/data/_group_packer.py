# SPDX-License-Identifier: Apache-2.0
"""`GroupPacker`: sequences that belong together, such as two answers to a question, in one row.

Shape letters: K sequences of a group, T time.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from dovetail.config import ConfigError

from ._errors import place_of
from ._fitting import NOTHING, check_left_out, counts_in, fitted, plus, state_of
from ._packing import Packer, Row, State
from ._run import DocumentPlace, Reader


class GroupPacker(Packer):
    """Makes a row of each group: `[K, T]`, a sequence in each line of it, which starts at its left and is filled up.

    A group is there whole or not at all. Of one with a sequence longer than a row, `too_long` says what becomes:
    "truncate", which cuts off the rest; "leave-out", the group; "error". Where nothing is left of a sequence that
    counts as a target, the group is left out. What is cut or left out is counted.
    """

    class Config(Packer.Config):
        size: int = 2  # K.
        too_long: Literal["truncate", "leave-out", "error"] = "truncate"

        def row_shape(self, seq_len: int) -> tuple[int, ...]:
            return (self.size, seq_len)

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if cfg.size < 2:
            raise ConfigError(f"{place_of(self, 'size')}: is {cfg.size}. Use 2 or more, or another packer.")

    @property
    def group(self) -> int:
        return self.cfg.size

    def first(self, place: DocumentPlace) -> State:
        return {"document": place}

    def rows(self, reader: Reader, state: State | None) -> Iterator[tuple[Row, State]]:
        state = state or self.first(reader.first)
        start = place = state["document"]
        size, seq_len, too_long = self.cfg.size, self.cfg.seq_len, self.cfg.too_long
        counts, passed = counts_in(state), NOTHING  # Passed: since the last row.
        while (run := reader.read(place)) is not None:
            for number in range(len(run.ends) // size):
                found = [each for i in range(size) for each in fitted(run, number * size + i, seq_len, too_long)]
                pieces = [each.piece for each in found if each.piece is not None]
                out = [each.counted for each in found if each.piece is None]
                passed = plus(passed, max(out or [each.counted for each in found], key=sum))
                if len(pieces) < size:
                    check_left_out(passed, seq_len, place_of(self))
                    continue
                counts, passed = plus(counts, passed), NOTHING
                rows = [self._make([piece]) for piece in pieces]
                row = {name: np.stack([each[name] for each in rows]) for name in rows[0]}
                yield row, {"document": run.place(number + 1), **state_of(counts, too_long)}
            place = run.after
        if start == reader.first and not any(counts):
            check_left_out(passed, seq_len, place_of(self), is_all=True)
