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

FIELDS = {"tokens": np.int32, "targets": np.int32, "weights": np.float32, "segments": np.int32, "positions": np.int32}

Row = dict[str, np.ndarray]  # The fields above, [T] each.
State = dict[str, Any]  # A position in a stream of rows: plain data, as JSON has it.
Reader = Callable[[int], np.ndarray | None]  # Gives the tokens of the n-th document, or None past the last.


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


class Packer(Component, abc.ABC):
    """Turns a sequence of documents into a sequence of rows. It keeps nothing: the position travels with each row."""

    class Config(Component.Config):
        seq_len: int = REQUIRED  # Both are set by the data set.
        pad_id: int = REQUIRED

    @abc.abstractmethod
    def first(self) -> State:
        """The position before the first row."""

    @abc.abstractmethod
    def rows(self, read: Reader, state: State) -> Iterator[tuple[Row, State]]:
        """Yields the rows after position `state`, each with the position after it, until `read` gives None."""

    def _make(self, pieces: Sequence[Piece]) -> Row:
        return make_row(pieces, seq_len=self.cfg.seq_len, pad_id=self.cfg.pad_id)


class ConcatPacker(Packer):
    """Joins all documents and cuts every `seq_len` tokens: no padding, and documents are cut anywhere."""

    def first(self) -> State:
        return {"document": 0, "token": 0}

    def rows(self, read: Reader, state: State) -> Iterator[tuple[Row, State]]:
        number, start = state["document"], state["token"]
        pieces: list[Piece] = []
        space = self.cfg.seq_len
        while (tokens := read(number)) is not None:
            while start < len(tokens):
                piece = _cut(tokens, start, start + space)
                pieces.append(piece)
                start += len(piece.tokens)
                space -= len(piece.tokens)
                if not space:
                    goes_on = start < len(tokens)
                    after = {"document": number if goes_on else number + 1, "token": start if goes_on else 0}
                    yield self._make(pieces), after
                    pieces, space = [], self.cfg.seq_len
            number, start = number + 1, 0
        if pieces:
            yield self._make(pieces), {"document": number, "token": 0}


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

    def first(self) -> State:
        return {"document": 0, "row": 0}  # The first document of the window, and the rows of it already given.

    def rows(self, read: Reader, state: State) -> Iterator[tuple[Row, State]]:
        number, given = state["document"], state["row"]
        while True:
            first, pieces, missing = number, list[Piece](), self.cfg.window * self.cfg.seq_len
            while missing > 0 and (tokens := read(number)) is not None:
                steps = range(0, len(tokens), self.cfg.seq_len)
                pieces += [_cut(tokens, start, start + self.cfg.seq_len) for start in steps]
                missing -= len(tokens)
                number += 1
            if not pieces:
                return
            packed = best_fit([len(piece.tokens) for piece in pieces], self.cfg.seq_len)
            for row, members in enumerate(packed[given:], given + 1):
                yield self._make([pieces[i] for i in members]), {"document": first, "row": row}
            given = 0


def _cut(tokens: np.ndarray, start: int, stop: int) -> Piece:
    return Piece(tokens[start:stop], int(tokens[stop]) if stop < len(tokens) else None)


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
