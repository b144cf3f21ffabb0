# SPDX-License-Identifier: Apache-2.0
"""What becomes of documents longer than a row, and the counts of it that a position has."""

import operator
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from ._errors import DataError
from ._run import Run

TooLong = Literal["cut", "truncate", "leave-out", "error"]
# Of documents: over, in whatever way; and of these: cut short, left out as too long, and left out as nothing that is
# left of them counts as a target.
COUNTS = ("ended", "truncated", "left_out", "masked")
_COUNTED = {"truncate": "truncated", "leave-out": "left_out"}
_MOST = 10_000  # Documents in a row that may be left out.

Counts = tuple[int, ...]  # By `COUNTS`.
NOTHING, _ENDED, _TRUNCATED, _LEFT_OUT, _MASKED = (0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)


class Piece(NamedTuple):
    """All or part of a document, and the token that comes after it if the document goes on."""

    tokens: np.ndarray
    following: int | None
    weights: np.ndarray | None = None  # Of the token after each; None: 1. The last one is 0 if there is none.
    start: int = 0  # The position of its first token.


class Fitted(NamedTuple):
    """A piece that fits a row, or none, and how the document is counted when it is given, or left out."""

    piece: Piece | None
    counted: Counts = NOTHING


def cut(run: Run, start: int, stop: int, *, positions_go_on: bool = False) -> Piece:
    """Returns the tokens from `start` to `stop`, or to the end of their document if that is sooner."""
    number = int(np.searchsorted(run.ends, start, side="right"))
    begin, end = run.bounds(number)
    stop = min(stop, end)
    following = int(run.tokens[stop]) if stop < end else None
    weights = None
    if run.weights is not None:
        weights = run.weights[start + 1 : stop + 1]
        if following is None:
            weights = np.append(run.weights[start + 1 : stop], np.float32(0))
    return Piece(run.tokens[start:stop], following, weights, start - begin if positions_go_on else 0)


def fitted(run: Run, number: int, seq_len: int, too_long: TooLong) -> list[Fitted]:
    """Returns what fits rows of the n-th sequence of a run."""
    start, stop = run.bounds(number)
    if start == stop:
        return [Fitted(None, _ENDED)]
    if stop - start <= seq_len:
        weights = None if run.weights is None else np.append(run.weights[start + 1 : stop], np.float32(0))
        return [Fitted(Piece(run.tokens[start:stop], None, weights), _ENDED)]
    if too_long == "cut":
        pieces = [cut(run, at, at + seq_len) for at in range(start, stop, seq_len)]
        return [*map(Fitted, pieces[:-1]), Fitted(pieces[-1], _ENDED)]
    if too_long == "leave-out":
        return [Fitted(None, _LEFT_OUT)]
    if too_long == "error":
        name = f"document {run.place(number // run.group)}" if run.where is None else run.where(number // run.group)
        raise DataError(
            f"{name}: has {stop - start:,} tokens, more than a row (seq_len={seq_len:,}), and too_long is 'error'.\n"
            "  Use longer rows, or another too_long."
        )
    piece = cut(run, start, start + seq_len)
    if piece.weights is not None and not piece.weights.any():
        return [Fitted(None, _MASKED)]
    return [Fitted(piece, _TRUNCATED)]


def counts_in(state: Mapping[str, Any]) -> Counts:
    """Returns the counts of a position; 0 where it has none, as those of old."""
    return tuple(state.get(name, 0) for name in COUNTS)


def plus(counts: Counts, more: Counts) -> Counts:
    """Returns the sum of two counts."""
    return tuple(map(operator.add, counts, more))


def minus(counts: Counts, less: Counts) -> Counts:
    """Returns the difference of two counts."""
    return tuple(map(operator.sub, counts, less))


def state_of(counts: Counts, too_long: TooLong) -> dict[str, int]:
    """Returns what a position has of counts: those that are of interest."""
    always = _COUNTED.get(too_long)
    return {n: count for n, count in zip(COUNTS, counts, strict=True) if count or n == "ended" or n == always}


def check_left_out(counts: Counts, seq_len: int, where: str, *, is_all: bool = False) -> None:
    """Raises if so many documents were left out, one after the other, that nothing may come any more."""
    _, _, left_out, masked = counts
    if left_out + masked >= (1 if is_all else _MOST):
        which = "all" if is_all else f"{left_out + masked:,} in a row"
        raise DataError(
            f"{where}: {which} of the documents are left out: {left_out:,} are longer than a row "
            f"(seq_len={seq_len:,}), and of {masked:,} nothing is left that counts as a target.\n"
            "  Use longer rows, or another too_long."
        )
