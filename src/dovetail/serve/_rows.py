# SPDX-License-Identifier: Apache-2.0
"""Plans as arrays: what a device is given for a call.

What stays the same from step to step is kept by slot, so that a call only picks its rows. Each call gets new arrays: a
device may still read the old ones.
"""

import numpy as np

from ._device import DeviceShape, RowDraw, Rows
from ._sequence import Call, Row, Sequence

_PARAMETERS = {  # Fields of RowDraw that are parameters of a request: its name there, and the type.
    "temperature": ("temperature", np.float32),
    "top_k": ("top_k", np.int32),
    "top_p": ("top_p", np.float32),
    "min_p": ("min_p", np.float32),
    "repetition": ("repetition_penalty", np.float32),
    "presence": ("presence_penalty", np.float32),
    "frequency": ("frequency_penalty", np.float32),
}


class RowArrays:
    """The arrays of slots. The last row of each stands for a row that is not used."""

    def __init__(self, shape: DeviceShape) -> None:
        self._shape = shape
        self._words = -(-shape.vocab_size // 32)
        places = shape.slots + 1
        self._tables = [np.zeros((places, shape.row_pages), np.int32) for _ in shape.groups]
        self._parameters = {name: np.zeros(places, dtype) for name, (_, dtype) in _PARAMETERS.items()}
        self._parameters["top_p"][:] = 1
        self._parameters["repetition"][:] = 1
        self._seed = np.zeros(places, np.uint32)
        self._choice = np.zeros(places, np.int32)
        self._turns: list[tuple[Sequence, int] | None] = [None] * shape.slots  # What the row of a slot is of.
        self._sizes = [next(size for size in shape.rows if size >= n) for n in range(shape.slots + 1)]

    def rows(self, call: Call) -> Rows:
        """Returns what a device is given for a call."""
        shape, planned = self._shape, call.rows
        decodes = call.size == 1 or call.verifies
        num = self._sizes[len(planned)] if decodes else 1
        slots = np.full(num, shape.slots, np.int32)
        ids = np.zeros((num, call.size), np.int32)
        source, start, count = slots.copy(), np.zeros(num, np.int32), np.zeros(num, np.int32)
        fresh, follows, draws = np.zeros(num, bool), np.zeros(num, bool), np.zeros(num, bool)
        for i, row in enumerate(planned):
            slots[i] = slot = self._slot_of(row.sequence)
            source[i] = slot if row.source is None else shape.slots + row.source
        used = len(planned)
        start[:used] = [row.start for row in planned]
        count[:used] = [row.count for row in planned]
        follows[:used] = [row.follows for row in planned]
        draws[:used] = [row.draws for row in planned]
        fresh[:used] = start[:used] == 0
        targets = pools = None
        if decodes:
            ids[:used, 0] = [0 if row.follows else row.sequence.tokens[row.start] for row in planned]
            for i, row in enumerate(planned if call.verifies else ()):
                ids[i, 1 : row.count] = row.drafts
        else:
            row = planned[0]
            ids[0, : row.count] = row.sequence.tokens[row.start : row.start + row.count]
            if row.scores:
                targets, pools = self._targets(row, call.size), _pools(row, call.size)
        return Rows(
            ids=ids,
            slots=slots,
            source=source,
            fresh=fresh,
            start=start,
            count=count,
            follows=follows,
            tables={group.name: table[slots] for group, table in zip(shape.groups, self._tables, strict=True)},
            draws=draws,
            draw=self._draw(planned, slots),
            prompt_logprobs=targets is not None,
            targets=targets,
            pools=pools,
            verifies=call.verifies,
        )

    def _slot_of(self, sequence: Sequence) -> int:
        """The slot of a sequence, whose arrays are then up to date."""
        slot, held = sequence.slot, sequence.held
        assert slot is not None
        assert held is not None
        if self._turns[slot] != (sequence, sequence.turns):
            self._turns[slot] = (sequence, sequence.turns)
            draw = sequence.request.draw
            for name, (field, _) in _PARAMETERS.items():
                self._parameters[name][slot] = getattr(draw, field)
            self._seed[slot] = draw.seed & 0xFFFFFFFF
            self._choice[slot] = sequence.request.choice
            for table in self._tables:
                table[slot] = 0
        if held.changes:
            for group, place, page in held.changes:
                self._tables[group][slot, place] = page
            held.changes.clear()
        return slot

    def _targets(self, row: Row, size: int) -> np.ndarray | None:
        if row.sequence.request.prompt_logprobs is None:
            return None
        targets = np.zeros((1, size), np.int32)
        following = row.sequence.tokens[row.start + 1 : row.start + 1 + row.count]
        targets[0, : len(following)] = following
        return targets

    def _draw(self, planned: list[Row], slots: np.ndarray) -> RowDraw | None:
        if not any(row.draws and _needs_draw(row.sequence) for row in planned):
            return None
        number = np.zeros(len(slots), np.int32)
        number[: len(planned)] = [row.number for row in planned]
        mask = bias = None
        for i, row in enumerate(planned):
            if row.draws and row.sequence.mask is not None:
                if mask is None:
                    mask = np.full((len(slots), self._words), -1, np.int32)
                mask[i] = row.sequence.mask
        if any(row.sequence.request.draw.logit_bias for row in planned):
            bias = [row.sequence.request.draw.logit_bias for row in planned]
            bias += [{}] * (len(slots) - len(planned))
        return RowDraw(
            **{name: values[slots] for name, values in self._parameters.items()},
            seed=self._seed[slots],
            choice=self._choice[slots],
            number=number,
            mask=mask,
            bias=bias,
        )


def _pools(row: Row, size: int) -> np.ndarray | None:
    """Returns the weights of tokens in an embedding; those of all chunks of a prompt together are 1."""
    prompt, pooling = row.sequence.prompt, row.sequence.request.pooling
    if pooling is None:
        return None
    places = row.start + np.arange(size)
    chosen = places == prompt - 1 if pooling == "last" else places < min(prompt, row.start + row.count)
    return (chosen.astype(np.float32) / (1 if pooling == "last" else prompt))[None]


def _needs_draw(sequence: Sequence) -> bool:
    request = sequence.request
    return request.logprobs is not None or sequence.grammar is not None or not request.draw.is_plain
