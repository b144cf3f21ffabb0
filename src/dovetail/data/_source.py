# SPDX-License-Identifier: Apache-2.0
"""`Source`: documents by index. What a data set is made from, whatever the format of its files."""

import abc
import os
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from dovetail.config import REQUIRED, Component

from ._compressed import local_copy
from ._document import Document
from ._errors import DataError, place_of
from ._files import find_files

_FIRST = 10  # Documents of which at least one must be good.


class Source(Component, abc.ABC):
    """A fixed number of documents, each read by its index. Any number of threads may read at once."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of documents, at least 1."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Document:
        """Reads one document. A bad one is a `DataError` that names its place."""

    @abc.abstractmethod
    def place(self, index: int) -> str:
        """Where a document is, as in `web.jsonl:17`. May be slow: for errors."""

    @abc.abstractmethod
    def size(self) -> int:
        """The number of bytes on this disk; with the number of documents, it tells whether data has changed."""

    def blocks(self) -> np.ndarray | None:
        """Sizes of the runs of documents that are cheap to read together; None if any order is as good.

        Documents are shuffled within blocks, and blocks among each other.
        """
        return None

    def ends(self) -> np.ndarray | None:
        """How many documents there are up to the end of each file; None if there are no files to speak of."""
        return None

    @property
    def group(self) -> int:
        """How many sequences each document has: more than 1 where several belong together."""
        return 1


class FileSource(Source, abc.ABC):
    """Base of sources that read a list of files: finds the file that a document is in.

    Files that are compressed or at a URL are copied once, to the cache of this machine.
    """

    class Config(Source.Config):
        files: list[str] = REQUIRED  # Paths, globs or URLs, as in ["books/*.jsonl", "s3://bucket/web/*.jsonl.gz"].
        may_change: ClassVar[frozenset[str]] = frozenset({"files"})  # Moved: a position knows documents and bytes.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        found = find_files(cfg.files, place_of(self, "files"))
        self.files = [file.name for file in found]  # What messages call them.
        self._paths = [local_copy(file, self) for file in found]  # Where they are read.
        self._size = sum(map(os.path.getsize, self._paths))
        self._ends = np.zeros(len(self.files), np.int64)  # Documents up to the end of each file.

    def _set_counts(self, counts: Iterable[int]) -> None:
        self._ends = np.cumsum(np.fromiter(counts, np.int64))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Document:
        return self._read(*self._locate(index))

    def place(self, index: int) -> str:
        return self._place(*self._locate(index))

    def size(self) -> int:
        return self._size

    def ends(self) -> np.ndarray:
        return self._ends

    def _check_first(self) -> None:
        """Raises if none of the first documents can be read: a wrong field is found now, and not in training."""
        first: DataError | None = None
        for index in range(min(len(self), _FIRST)):
            try:
                self[index]
                return
            except DataError as e:
                first = first or e
        if first is not None:
            raise first

    def _locate(self, index: int) -> tuple[int, int]:
        """Returns the number of the file, and the number of the document in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"{place_of(self)}: document {index} of {len(self)}")
        file = int(np.searchsorted(self._ends, index, side="right"))
        return file, index - (int(self._ends[file - 1]) if file else 0)

    @abc.abstractmethod
    def _read(self, file: int, at: int) -> Document: ...

    @abc.abstractmethod
    def _place(self, file: int, at: int) -> str: ...
