# SPDX-License-Identifier: Apache-2.0
"""Packing: documents of any length into rows of one length.

A row has five fields of shape [T]. At each place there is a token (`tokens`), the token to predict from it (`targets`),
and how much that prediction counts (`weights`): 1, or 0 where the next token is not of the same document; the target is
then padding. Where a document has weights, it is that of the token to predict. `segments` numbers the documents of a
row from 1, with 0 for padding; `positions` counts from 0 in each segment. A document that does not fit goes on in
another row; the last token of its first part still has its target, so that every token but the first of a document is
predicted exactly once.

A position also counts: documents that are over (`ended`), and what became of those longer than a row.
"""

import abc
import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from dovetail.config import REQUIRED, Component, ConfigError

from ._errors import place_of
from ._fitting import NOTHING, Counts, Piece, TooLong, check_left_out, counts_in, cut, fitted, minus, plus, state_of
from ._run import DocumentPlace, Reader, Run

FIELDS = {"tokens": np.int32, "targets": np.int32, "weights": np.float32, "segments": np.int32, "positions": np.int32}

Row = dict[str, np.ndarray]  # The fields above, [T] each; where a row is a group, [K, T].
State = dict[str, Any]  # A position in a stream of rows: plain data, as JSON has it.
_ROWS_AT_ONCE = 1 << 16  # Tokens of the rows that are made together: what caches of a processor hold.


def make_row(pieces: Sequence[Piece], *, seq_len: int, pad_id: int) -> Row:
    """Returns the row that holds these pieces one after the other; without pieces, one of padding."""
    row = {name: np.zeros(seq_len, dtype) for name, dtype in FIELDS.items()}
    row["tokens"].fill(pad_id)
    row["targets"].fill(pad_id)
    start = 0
    for segment, (tokens, following, weights, first) in enumerate(pieces, 1):
        stop = start + len(tokens)
        row["tokens"][start:stop] = tokens
        row["targets"][start : stop - 1] = tokens[1:]
        row["weights"][start : stop - 1] = 1
        if following is not None:
            row["targets"][stop - 1] = following
            row["weights"][stop - 1] = 1
        if weights is not None:
            row["weights"][start:stop] = weights
        row["segments"][start:stop] = segment
        row["positions"][start:stop] = np.arange(first, first + stop - start)
        start = stop
    return row


def make_rows(
    run: Run, start: int, count: int, *, seq_len: int, pad_id: int, positions_go_on: bool = False
) -> list[Row]:
    """Returns `count` full rows of the tokens of a run from `start` on: as `make_row` makes them, and much faster."""
    size = count * seq_len
    stop = start + size
    tokens = run.tokens[start:stop].astype(np.int32)
    targets, weights = np.empty(size, np.int32), np.ones(size, np.float32)
    targets[:-1] = tokens[1:]
    targets[-1] = run.tokens[stop] if stop < len(run.tokens) else pad_id
    if run.weights is not None:
        following = run.weights[start + 1 : stop + 1]
        weights[: len(following)] = following
    ends = run.ends[np.searchsorted(run.ends, start, "right") : np.searchsorted(run.ends, stop, "right")] - start
    targets[ends - 1] = pad_id
    weights[ends - 1] = 0
    starts = np.union1d(ends[ends < size], np.arange(0, size, seq_len))  # Of the pieces of documents.
    lengths = np.diff(starts, append=size)
    zeros = starts  # Where the positions of each piece are 0.
    if positions_go_on:
        zeros = np.append(0, run.ends[:-1])[np.searchsorted(run.ends, start + starts, "right")] - start
    row = starts // seq_len
    segments = np.arange(1, len(starts) + 1) - np.searchsorted(row, row)
    fields = {
        "tokens": tokens,
        "targets": targets,
        "weights": weights,
        "segments": np.repeat(segments.astype(np.int32), lengths),
        "positions": np.arange(size, dtype=np.int32) - np.repeat(zeros.astype(np.int32), lengths),
    }
    split = {name: values.reshape(count, seq_len) for name, values in fields.items()}
    return [{name: values[i] for name, values in split.items()} for i in range(count)]


class Packer(Component, abc.ABC):
    """Turns a sequence of documents into a sequence of rows. It keeps nothing: the position travels with each row."""

    class Config(Component.Config):
        seq_len: int = REQUIRED  # Both are set by the data set.
        pad_id: int = REQUIRED

        def row_shape(self, seq_len: int) -> tuple[int, ...]:
            """Returns the shape of each field of a row."""
            return (seq_len,)

    # Whether a row starts where the one before ended, and positions with it: then each row of a batch is a stream.
    rows_go_on: ClassVar[bool] = False

    @property
    def group(self) -> int:
        """How many sequences each document must have."""
        return 1

    def fingerprint(self) -> str:
        """Returns what the rows depend on besides the documents."""
        return repr(self.cfg)

    @abc.abstractmethod
    def first(self, place: DocumentPlace) -> State:
        """Returns the position before the document at a place."""

    @abc.abstractmethod
    def rows(self, reader: Reader, state: State | None) -> Iterator[tuple[Row, State]]:
        """Yields the rows after position `state`, or all, each with the position after it, until the reader ends."""

    def seek(self, rows: int, find: Callable[[int], tuple[Run, int, int] | None]) -> State | None:
        """Returns the position after so many rows from the start, if that is known without making them.

        `find` returns the run that the n-th token is in, where the next one is, and how many documents are before it;
        None if there are not so many tokens.
        """
        return None

    def _make(self, pieces: Sequence[Piece]) -> Row:
        return make_row(pieces, seq_len=self.cfg.seq_len, pad_id=self.cfg.pad_id)


class ConcatPacker(Packer):
    """Joins all documents and cuts every `seq_len` tokens: no padding, and documents are cut anywhere."""

    def first(self, place: DocumentPlace) -> State:
        return {"document": place, "token": 0}

    def seek(self, rows: int, find: Callable[[int], tuple[Run, int, int] | None]) -> State | None:
        found = find(rows * self.cfg.seq_len)
        return None if found is None else _position(*found)

    def rows(self, reader: Reader, state: State | None) -> Iterator[tuple[Row, State]]:
        return _joined_rows(self, reader, state or self.first(reader.first))


class ConsecutivePacker(Packer):
    """Joins all documents and cuts every `seq_len` tokens, for models that carry a state from step to step.

    The row b of a batch goes on where the row b of the batch before ended, so there are as many streams as rows. A
    position is that in the document, across rows: at 0, and nowhere else, a state begins anew.
    """

    rows_go_on = True

    def first(self, place: DocumentPlace) -> State:
        return {"document": place, "token": 0}

    def rows(self, reader: Reader, state: State | None) -> Iterator[tuple[Row, State]]:
        return _joined_rows(self, reader, state or self.first(reader.first))


def _joined_rows(packer: Packer, reader: Reader, state: State) -> Iterator[tuple[Row, State]]:
    """Yields rows that have no padding, of documents that are cut anywhere."""
    place, start, before = state["document"], state["token"], state.get("ended", 0)
    how: dict[str, Any] = {"seq_len": packer.cfg.seq_len, "pad_id": packer.cfg.pad_id}
    seq_len = how["seq_len"]
    pieces: list[Piece] = []  # Of a row that is not full.
    space = seq_len
    while (run := reader.read(place)) is not None:
        count = len(run.tokens)
        while start < count:
            if not pieces and (full := (count - start) // seq_len):
                full = min(full, max(_ROWS_AT_ONCE // seq_len, 1))
                for row in make_rows(run, start, full, **how, positions_go_on=packer.rows_go_on):
                    start += seq_len
                    yield row, _position(run, start, before)
                continue
            piece = cut(run, start, start + space, positions_go_on=packer.rows_go_on)
            pieces.append(piece)
            start += len(piece.tokens)
            space -= len(piece.tokens)
            if not space:
                yield make_row(pieces, **how), _position(run, start, before)
                pieces, space = [], seq_len
        place, start, before = run.after, 0, before + len(run.ends)
    if pieces:
        yield make_row(pieces, **how), {"document": place, "token": 0, "ended": before}


def _position(run: Run, at: int, before: int) -> State:
    """Returns the position before token `at` of a run, before which so many documents had ended."""
    ended = int(np.searchsorted(run.ends, at, side="right"))
    token = at - int(run.ends[ended - 1]) if ended else at
    return {"document": run.place(ended), "token": token, "ended": before + ended}


class BestFitPacker(Packer):
    """Keeps documents whole where it can, at the price of some padding (best fit, longest first).

    Of one longer than a row, `too_long` says what becomes: "cut" into full rows and a rest, each packed like a
    document; "truncate", which leaves out the rest; "leave-out", all of it; "error". What is left out is counted.
    Documents are taken until they would fill `window` rows, and packed together; a larger window gives less padding
    and needs more memory.

    Reference: Ding et al., Fewer Truncations Improve Language Modeling, 2024 (arXiv:2404.10830).
    """

    class Config(Packer.Config):
        window: int = 64
        too_long: TooLong = "cut"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if cfg.window < 1:
            raise ConfigError(f"{place_of(self, 'window')}: is {cfg.window}. Use 1 or more rows.")

    def fingerprint(self) -> str:
        return repr(self.cfg).replace(", too_long='cut'", "")  # As it was before there was a choice.

    def first(self, place: DocumentPlace) -> State:
        return {"document": place, "row": 0}  # The first document of a window, and the rows of it already given.

    def rows(self, reader: Reader, state: State | None) -> Iterator[tuple[Row, State]]:
        state = state or self.first(reader.first)
        given, counts = state["row"], counts_in(state)
        for first, pieces, passed in self._windows(reader, state["document"]):
            packed = best_fit([len(piece.tokens) for piece, _ in pieces], self.cfg.seq_len)
            # What the rows of this window count, up to each; the position has that of those given.
            rows = [reduce(plus, [pieces[i][1] for i in members]) for members in packed]
            totals = list(accumulate(rows, plus, initial=passed))
            counts = minus(counts, totals[given]) if given else counts
            for row, members in enumerate(packed[given:], given + 1):
                after = state_of(plus(counts, totals[row]), self.cfg.too_long)
                yield self._make([pieces[i][0] for i in members]), {"document": first, "row": row, **after}
            given, counts = 0, plus(counts, totals[-1])

    def _windows(
        self, reader: Reader, first: DocumentPlace
    ) -> Iterator[tuple[DocumentPlace, list[tuple[Piece, Counts]], Counts]]:
        """Yields what is packed together: the place of its first document, pieces, and what is counted besides them."""
        seq_len, too_long = self.cfg.seq_len, self.cfg.too_long
        size, is_start = self.cfg.window * seq_len, first == reader.first
        place, pieces, passed, missing = first, list[tuple[Piece, Counts]](), NOTHING, size
        while (run := reader.read(place)) is not None:
            for number in range(len(run.ends)):
                for piece, counted in fitted(run, number, seq_len, too_long):
                    if piece is None:
                        passed = plus(passed, counted)
                        if not pieces:
                            check_left_out(passed, seq_len, place_of(self))
                    else:
                        pieces.append((piece, counted))
                        missing -= len(piece.tokens)
                if missing <= 0:
                    yield first, pieces, passed
                    first, pieces, passed, missing = run.place(number + 1), [], NOTHING, size
                    is_start = False
            place = run.after
        if pieces:
            yield first, pieces, passed
        elif is_start:
            check_left_out(passed, seq_len, place_of(self), is_all=True)


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Returns groups of indices into `lengths`, of at most `capacity` in sum, by best fit from the longest on.

    Groups are ordered by their longest member's index, which in shuffled data says nothing about its length; so long
    and short documents are spread evenly.

    >>> best_fit([2, 9, 1, 6, 2], capacity=10)
    [[1, 2], [0, 3, 4]]
    """
    groups: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # Space left in a group, and the group; sorted.
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        found = bisect.bisect_left(spaces, (length, 0))
        if found < len(spaces):
            space, group = spaces.pop(found)
        else:
            space, group = capacity, len(groups)
            groups.append([])
        groups[group].append(index)
        if space > length:
            bisect.insort(spaces, (space - length, group))
    return [sorted(group) for group in sorted(groups, key=lambda group: group[0])]
