# SPDX-License-Identifier: Apache-2.0
"""Packing: documents of any length into rows of one length.

A row has five fields of shape [T]. At each place there is a token (`tokens`), the token to predict from it (`targets`),
and how much that prediction counts (`weights`): 1, or 0 where the next token is not of the same document; the target is
then padding. `segments` numbers the documents of a row from 1, with 0 for padding; `positions` counts from 0 in each
segment. A document that does not fit goes on in another row; the last token of its first part still has its target, so
that every token but the first of a document is predicted exactly once.
"""

import abc
import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.config import REQUIRED, Component, ConfigError

from ._errors import place_of
from ._run import DocumentPlace, Reader, Run

FIELDS = {"tokens": np.int32, "targets": np.int32, "weights": np.float32, "segments": np.int32, "positions": np.int32}

Row = dict[str, np.ndarray]  # The fields above, [T] each.
State = dict[str, Any]  # A position in a stream of rows: plain data, as JSON has it.
_ROWS_AT_ONCE = 1 << 16  # Tokens of the rows that are made together: what caches of a processor hold.


class Piece(NamedTuple):
    """All or part of a document, and the token that comes after it if the document goes on."""

    tokens: np.ndarray
    following: int | None


def make_row(pieces: Sequence[Piece], *, seq_len: int, pad_id: int) -> Row:
    """Returns the row that holds these pieces one after the other; without pieces, one of padding."""
    row = {name: np.zeros(seq_len, dtype) for name, dtype in FIELDS.items()}
    row["tokens"].fill(pad_id)
    row["targets"].fill(pad_id)
    start = 0
    for segment, (tokens, following) in enumerate(pieces, 1):
        stop = start + len(tokens)
        row["tokens"][start:stop] = tokens
        row["targets"][start : stop - 1] = tokens[1:]
        row["weights"][start : stop - 1] = 1
        if following is not None:
            row["targets"][stop - 1] = following
            row["weights"][stop - 1] = 1
        row["segments"][start:stop] = segment
        row["positions"][start:stop] = np.arange(stop - start)
        start = stop
    return row


def make_rows(run: Run, start: int, count: int, *, seq_len: int, pad_id: int) -> list[Row]:
    """Returns `count` full rows of the tokens of a run from `start` on: as `make_row` makes them, and much faster."""
    size = count * seq_len
    stop = start + size
    tokens = run.tokens[start:stop].astype(np.int32)
    targets, weights = np.empty(size, np.int32), np.ones(size, np.float32)
    targets[:-1] = tokens[1:]
    targets[-1] = run.tokens[stop] if stop < len(run.tokens) else pad_id
    ends = run.ends[np.searchsorted(run.ends, start, "right") : np.searchsorted(run.ends, stop, "right")] - start
    targets[ends - 1] = pad_id
    weights[ends - 1] = 0
    starts = np.union1d(ends[ends < size], np.arange(0, size, seq_len))  # Of the pieces of documents.
    lengths = np.diff(starts, append=size)
    row = starts // seq_len
    segments = np.arange(1, len(starts) + 1) - np.searchsorted(row, row)
    fields = {
        "tokens": tokens,
        "targets": targets,
        "weights": weights,
        "segments": np.repeat(segments.astype(np.int32), lengths),
        "positions": np.arange(size, dtype=np.int32) - np.repeat(starts.astype(np.int32), lengths),
    }
    split = {name: values.reshape(count, seq_len) for name, values in fields.items()}
    return [{name: values[i] for name, values in split.items()} for i in range(count)]


class Packer(Component, abc.ABC):
    """Turns a sequence of documents into a sequence of rows. It keeps nothing: the position travels with each row."""

    class Config(Component.Config):
        seq_len: int = REQUIRED  # Both are set by the data set.
        pad_id: int = REQUIRED

    @abc.abstractmethod
    def first(self, place: DocumentPlace) -> State:
        """Returns the position before the document at a place."""

    @abc.abstractmethod
    def rows(self, reader: Reader, state: State | None) -> Iterator[tuple[Row, State]]:
        """Yields the rows after position `state`, or all, each with the position after it, until the reader ends."""

    def seek(self, rows: int, find: Callable[[int], tuple[Run, int] | None]) -> State | None:
        """Returns the position after so many rows from the start, if that is known without making them.

        `find` returns the run that the n-th token is in, and where the next one is; None if there are not so many.
        """
        return None

    def _make(self, pieces: Sequence[Piece]) -> Row:
        return make_row(pieces, seq_len=self.cfg.seq_len, pad_id=self.cfg.pad_id)


class ConcatPacker(Packer):
    """Joins all documents and cuts every `seq_len` tokens: no padding, and documents are cut anywhere."""

    def first(self, place: DocumentPlace) -> State:
        return {"document": place, "token": 0}

    def seek(self, rows: int, find: Callable[[int], tuple[Run, int] | None]) -> State | None:
        found = find(rows * self.cfg.seq_len)
        return None if found is None else _position(*found)

    def rows(self, reader: Reader, state: State | None) -> Iterator[tuple[Row, State]]:
        state = state or self.first(reader.first)
        place, start = state["document"], state["token"]
        seq_len, pad_id = self.cfg.seq_len, self.cfg.pad_id
        pieces: list[Piece] = []  # Of a row that is not full.
        space = seq_len
        while (run := reader.read(place)) is not None:
            count = len(run.tokens)
            while start < count:
                if not pieces and (full := (count - start) // seq_len):
                    full = min(full, max(_ROWS_AT_ONCE // seq_len, 1))
                    for row in make_rows(run, start, full, seq_len=seq_len, pad_id=pad_id):
                        start += seq_len
                        yield row, _position(run, start)
                    continue
                piece = _cut(run, start, start + space)
                pieces.append(piece)
                start += len(piece.tokens)
                space -= len(piece.tokens)
                if not space:
                    yield self._make(pieces), _position(run, start)
                    pieces, space = [], seq_len
            place, start = run.after, 0
        if pieces:
            yield self._make(pieces), self.first(place)


def _position(run: Run, at: int) -> State:
    """Returns the position before token `at` of a run."""
    ended = int(np.searchsorted(run.ends, at, side="right"))
    return {"document": run.place(ended), "token": at - int(run.ends[ended - 1]) if ended else at}


class BestFitPacker(Packer):
    """Keeps documents whole where it can, at the price of some padding (best fit, longest first).

    Only a document longer than a row is cut, into full rows and a rest. Documents are taken until they would fill
    `window` rows, and packed together; a larger window gives less padding and needs more memory.

    Reference: Ding et al., Fewer Truncations Improve Language Modeling, 2024 (arXiv:2404.10830).
    """

    class Config(Packer.Config):
        window: int = 64

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if cfg.window < 1:
            raise ConfigError(f"{place_of(self, 'window')}: is {cfg.window}. Use 1 or more rows.")

    def first(self, place: DocumentPlace) -> State:
        return {"document": place, "row": 0}  # The first document of a window, and the rows of it already given.

    def rows(self, reader: Reader, state: State | None) -> Iterator[tuple[Row, State]]:
        state = state or self.first(reader.first)
        given = state["row"]
        for first, pieces in self._windows(reader, state["document"]):
            packed = best_fit([len(piece.tokens) for piece in pieces], self.cfg.seq_len)
            for row, members in enumerate(packed[given:], given + 1):
                yield self._make([pieces[i] for i in members]), {"document": first, "row": row}
            given = 0

    def _windows(self, reader: Reader, first: DocumentPlace) -> Iterator[tuple[DocumentPlace, list[Piece]]]:
        """Yields what is packed together, each with the place of its first document."""
        seq_len = self.cfg.seq_len
        place, pieces, missing = first, list[Piece](), self.cfg.window * seq_len
        while (run := reader.read(place)) is not None:
            for number in range(len(run.ends)):
                start, stop = run.bounds(number)
                pieces += [_cut(run, at, at + seq_len) for at in range(start, stop, seq_len)]
                missing -= stop - start
                if missing <= 0:
                    yield first, pieces
                    first, pieces, missing = run.place(number + 1), [], self.cfg.window * seq_len
            place = run.after
        if pieces:
            yield first, pieces


def _cut(run: Run, start: int, stop: int) -> Piece:
    """Returns the tokens from `start` to `stop`, or to the end of their document if that is sooner."""
    end = int(run.ends[np.searchsorted(run.ends, start, side="right")])
    return Piece(run.tokens[start : min(stop, end)], int(run.tokens[stop]) if stop < end else None)


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
