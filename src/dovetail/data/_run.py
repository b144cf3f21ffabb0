# SPDX-License-Identifier: Apache-2.0
"""`Reader`: what a packer reads, which is documents in runs; a run may be one document, or all of some megabytes."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

DocumentPlace = Any  # Which document comes next, as JSON has it: what it says is the reader's business.


class Tokens(NamedTuple):
    """A sequence as token ids: a document, or one of a group."""

    ids: np.ndarray  # [N], integers.
    weights: np.ndarray | None = None  # [N], float32: how much each counts as a target; None: 1.


class Run(NamedTuple):
    """Documents that follow each other, joined. Of groups, each document is `group` sequences."""

    tokens: np.ndarray  # [N], integers.
    ends: np.ndarray  # [sequences]: tokens up to the end of each.
    place: Callable[[int], DocumentPlace]  # Of the n-th document; of the one after the last, too.
    weights: np.ndarray | None = None  # [N], float32: of each token as a target; None: 1.
    group: int = 1
    where: Callable[[int], str] | None = None  # What the n-th document is called, for messages.

    @property
    def after(self) -> DocumentPlace:
        """The place of the first document that comes after this run."""
        return self.place(len(self.ends) // self.group)

    def bounds(self, number: int) -> tuple[int, int]:
        """Returns where the tokens of a sequence start and stop."""
        return int(self.ends[number - 1]) if number else 0, int(self.ends[number])


class Reader(abc.ABC):
    """The documents of one stream. It keeps no position."""

    @property
    @abc.abstractmethod
    def first(self) -> DocumentPlace:
        """The place of the first document."""

    @abc.abstractmethod
    def read(self, place: DocumentPlace) -> Run | None:
        """Returns documents from a place on, at least one; None past the last."""


class NumberedReader(Reader):
    """Reads documents one by one: `read` gives the n-th, one sequence or those of a group, or None past the last."""

    def __init__(
        self, read: Callable[[int], Sequence[Tokens] | None], where: Callable[[int], str] | None = None
    ) -> None:
        self._read, self._where = read, where

    @property
    def first(self) -> int:
        return 0

    def read(self, place: DocumentPlace) -> Run | None:
        found = self._read(place)
        if found is None:
            return None
        where = self._where
        tokens, weights = joined([each.ids for each in found]), joined_weights(found)
        ends = np.cumsum([len(each.ids) for each in found])
        name = None if where is None else lambda number: where(place + number)
        return Run(tokens, ends, lambda number: place + number, weights, len(found), name)


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns arrays one after the other."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def joined_weights(parts: Sequence[Tokens]) -> np.ndarray | None:
    """Returns the weights of sequences that follow each other; None: all are 1."""
    if all(each.weights is None for each in parts):
        return None
    return joined([np.ones(len(each.ids), np.float32) if each.weights is None else each.weights for each in parts])


def is_masked(weights: np.ndarray | None) -> bool:
    """Whether a sequence teaches nothing, as weights are 0. The first token is no target, and is not asked."""
    return weights is not None and not weights[1:].any() and not weights.all()
