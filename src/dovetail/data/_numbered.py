# SPDX-License-Identifier: Apache-2.0
"""`NumberedInput`: the short way to an input of one's own, where any row can be made from its number."""

import abc
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.config import ConfigError

from ._errors import place_of
from ._input import Input
from ._iterator import BatchIterator
from ._packing import State
from ._spec import Batch, BatchSpec

_AHEAD = 2  # Batches prepared ahead in a thread.


class NumberedInput(Input, abc.ABC):
    """Batches of rows with numbers: batch n, counted from 0, has the rows from `n * batch_size` on.

    A subclass says what batches are (`Config.batch_specs`, one of them), and makes a row. It shuffles by what it makes
    of a number. Where rows end, the last batch is filled up with padding, as the spec declares it.
    """

    @abc.abstractmethod
    def row(self, number: int) -> Mapping[str, Any]:
        """Returns a row: for each field an array, or a number, without the dimension of rows."""

    @property
    def num_rows(self) -> int | None:
        """How many rows there are; None: without end."""
        return None

    @property
    def is_endless(self) -> bool:
        return self.num_rows is None

    def carry(self, position: State) -> tuple[State, Sequence[str]]:
        if position["about"].keys() != {"input"}:
            return super().carry(position)
        notes = [f"it goes on with batch {position['step'] + 1} of the input as it is now"]
        return {**position, "about": {"input": repr(self.cfg)}}, notes

    def seek(self, steps: int) -> State:
        return {"step": steps, "streams": {"0": {"batches": steps}}, "about": {"input": repr(self.cfg)}}

    def iterator(self, *, shard_index: int = 0, shard_count: int = 1) -> BatchIterator:
        (spec,) = self.cfg.batch_specs()
        if not 0 <= shard_index < shard_count:
            raise ConfigError(f"{place_of(self)}: there is no shard {shard_index} of {shard_count}.")
        if spec.rows % shard_count:
            raise ConfigError(
                f"{place_of(self, 'batch_size')}: the number of processes ({shard_count}) must divide batch_size "
                f"({spec.rows})."
            )
        start = functools.partial(self._start, spec, shard_index, shard_count)
        return BatchIterator(start, streams=range(1), about={"input": repr(self.cfg)}, ahead=_AHEAD)

    def _start(self, spec: BatchSpec, shard_index: int, shard_count: int, states: dict[str, State]) -> list[Any]:
        first = states.get("0", {"batches": 0})["batches"]
        return [self._batches(spec, shard_index * (spec.rows // shard_count), spec.rows // shard_count, first)]

    def _batches(self, spec: BatchSpec, start: int, count: int, step: int) -> Iterator[tuple[Batch, dict[str, State]]]:
        """Yields `count` rows of each batch, from the row `start` of it on, and the position after it."""
        while self.num_rows is None or step * spec.rows < self.num_rows:
            numbers = range(step * spec.rows + start, step * spec.rows + start + count)
            end = len(numbers) if self.num_rows is None else max(0, min(len(numbers), self.num_rows - numbers[0]))
            # At least the last row of all, which padding may repeat.
            rows = [self.row(number) for number in numbers[:end] or [(self.num_rows or 1) - 1]]
            made = {name: np.stack([np.asarray(row[name], f.dtype) for row in rows]) for name, f in spec.fields.items()}
            filled = spec.filled(made, count - end if end else count)
            step += 1
            yield {name: values[-count:] for name, values in filled.items()}, {"0": {"batches": step}}
