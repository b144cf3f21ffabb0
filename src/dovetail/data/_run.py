# SPDX-License-Identifier: Apache-2.0
"""`Reader`: what a packer reads, which is documents in runs; a run may be one document, or all of some megabytes."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

DocumentPlace = Any  # Which document comes next, as JSON has it: what it says is the reader's business.


class Run(NamedTuple):
    """Documents that follow each other, joined."""

    tokens: np.ndarray  # [N], integers.
    ends: np.ndarray  # [documents]: tokens up to the end of each document.
    place: Callable[[int], DocumentPlace]  # Of the n-th document; of the one after the last, too.

    @property
    def after(self) -> DocumentPlace:
        """The place of the first document that comes after this run."""
        return self.place(len(self.ends))

    def bounds(self, number: int) -> tuple[int, int]:
        """Returns where the tokens of a document start and stop."""
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
    """Reads documents one by one: `read` gives the tokens of the n-th, or None past the last."""

    def __init__(self, read: Callable[[int], np.ndarray | None]) -> None:
        self._read = read

    @property
    def first(self) -> int:
        return 0

    def read(self, place: DocumentPlace) -> Run | None:
        tokens = self._read(place)
        return None if tokens is None else Run(tokens, np.array([len(tokens)]), lambda number: place + number)
