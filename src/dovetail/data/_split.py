# SPDX-License-Identifier: Apache-2.0
"""A part of another source: what is trained on, or what is held out to evaluate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.config import REQUIRED, ConfigError

from ._corpora import Split as SplitName
from ._document import Document
from ._errors import child_path, place_of
from ._files import find_files
from ._source import FileSource, Source
from ._text import TextFiles
from ._units import format_of

_SMALLEST, _LARGEST = 256, 1 << 16  # Bytes of a part of a text.


class Split(Source):
    """The documents of another source without the last of them, or only those.

    The last `held_out` of all documents are held out, at least one and at most `at_most`: neighbours are alike, and
    evaluation is for what the model has not seen.
    """

    class Config(Source.Config):
        source: Source.Config = REQUIRED
        split: SplitName = "train"
        held_out: float = 0.05
        at_most: int = 256

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if not 0 < cfg.held_out < 1:
            raise ConfigError(f"{place_of(self, 'held_out')}: is {cfg.held_out}. Use more than 0 and less than 1.")
        if cfg.at_most < 1:
            raise ConfigError(f"{place_of(self, 'at_most')}: is {cfg.at_most}. Use 1 or more.")
        self._source: Source = cfg.source.build(path=child_path(self, "source"))
        count = len(self._source)
        if count < 2:
            raise ConfigError(f"{place_of(self)}: there is {count} document, too few to hold one out. Give more text.")
        held_out = min(max(round(count * cfg.held_out), 1), cfg.at_most)
        rest = count - held_out
        self._first, self._count = (0, rest) if cfg.split == "train" else (rest, held_out)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Document:
        return self._source[self._within(index)]

    def place(self, index: int) -> str:
        return self._source.place(self._within(index))

    def size(self) -> int:
        return self._source.size()

    def blocks(self) -> np.ndarray | None:
        blocks = self._source.blocks()
        if blocks is None:
            return None
        ends = np.clip(np.cumsum(blocks) - self._first, 0, self._count)
        sizes = np.diff(ends, prepend=0)
        return sizes[sizes > 0]

    def ends(self) -> np.ndarray | None:
        ends = self._source.ends()
        return None if ends is None else np.clip(ends - self._first, 0, self._count)

    @property
    def group(self) -> int:
        return self._source.group

    def _within(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise IndexError(f"{place_of(self)}: document {index} of {self._count}")
        return self._first + index


def source_of(files: Sequence[str], where: str, *, to_split: bool = False) -> FileSource.Config:
    """Returns a source for files (paths, globs or URLs) by their kind, which is one for all of them.

    Text `to_split` is read in parts, of which there are at least 20 where there is enough of it, so that some can be
    held out. `where` is what to call the files in errors.
    """
    found = find_files(files, where)
    kinds = {format_of(file).source: file.name for file in found}
    if len(kinds) > 1:
        some = ", ".join(map(repr, kinds.values()))
        raise ConfigError(f"{where}: the files are of several kinds: {some}. Give files of one kind.")
    (kind,) = kinds
    if kind is not TextFiles or not to_split:
        return kind.Config(files=list(files))
    part = sum(file.size for file in found) // 20
    return TextFiles.Config(files=list(files), max_bytes=min(max(part, _SMALLEST), _LARGEST))
