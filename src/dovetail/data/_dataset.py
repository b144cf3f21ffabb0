# SPDX-License-Identifier: Apache-2.0
"""`Dataset`: an endless or finite sequence of rows, in several streams; `TextDataset` makes them from a source."""

import abc
from collections.abc import Iterator
from typing import Any

import numpy as np

from dovetail.config import REQUIRED, Component, ConfigError

from ._errors import DataError, child_path, place_of
from ._order import Order
from ._packing import ConcatPacker, Packer, Row, State
from ._run import NumberedReader
from ._source import Document, Source
from ._tokenizer import Tokenizer, check_ids, special_to_add


class Dataset(Component, abc.ABC):
    """Rows for training. It keeps no position: that travels with each row.

    The rows come in `num_streams` streams, which share the documents among them. A stream is the unit of work of
    processes: which rows there are depends on the number of streams, and on nothing else about the hardware.
    """

    class Config(Component.Config):
        seq_len: int = REQUIRED  # Both are set by the parent.
        seed: int = REQUIRED

    def __init__(self, cfg: Config, *, tokenizer: Tokenizer, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._tokenizer = tokenizer

    @abc.abstractmethod
    def rows(self, stream: int, num_streams: int, state: State | None) -> Iterator[tuple[Row, State]]:
        """Yields the rows of a stream after position `state`, or all, each with the position after it."""

    @property
    @abc.abstractmethod
    def is_endless(self) -> bool:
        """Whether the rows never end."""

    @abc.abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What a position depends on: with another fingerprint it would mean other data."""


class TextDataset(Dataset):
    """The documents of one source: shuffled anew in each epoch, tokenised, packed."""

    class Config(Dataset.Config):
        source: Source.Config = REQUIRED
        packer: Packer.Config = ConcatPacker.Config()
        shuffle: bool = True
        epochs: int | None = None  # None: without end.
        add_bos: bool = False  # Whether a document starts with the bos token of the tokenizer.
        add_eos: bool = True  # Whether it ends with the eos token.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if cfg.epochs is not None and cfg.epochs < 1:
            raise ConfigError(f"{place_of(self, 'epochs')}: is {cfg.epochs}. Use 1 or more, or None for no end.")
        pad_id = self._tokenizer.pad_id
        packer = cfg.packer.set(seq_len=cfg.seq_len, pad_id=0 if pad_id is None else pad_id)
        self._packer: Packer = packer.build(path=child_path(self, "packer"))
        self._bos = special_to_add(self, "add_bos", self._tokenizer.bos_id)
        self._eos = special_to_add(self, "add_eos", self._tokenizer.eos_id)
        self._source: Source = cfg.source.build(path=child_path(self, "source"))
        self._order = Order(len(self._source), blocks=self._source.blocks(), shuffle=cfg.shuffle, seed=cfg.seed)

    @property
    def is_endless(self) -> bool:
        return self.cfg.epochs is None

    def fingerprint(self) -> dict[str, Any]:
        fields = ("seed", "shuffle", "epochs", "add_bos", "add_eos")
        return {
            "documents": len(self._source),
            "bytes": self._source.size(),
            "packer": repr(self._packer.cfg),
            **{name: getattr(self.cfg, name) for name in fields},
        }

    def rows(self, stream: int, num_streams: int, state: State | None) -> Iterator[tuple[Row, State]]:
        count = len(self._source)
        empty = 0

        def read(number: int) -> np.ndarray | None:
            nonlocal empty
            epoch, at = divmod(stream + number * num_streams, count)
            if self.cfg.epochs is not None and epoch >= self.cfg.epochs:
                return None
            tokens = self.tokens(self._order(epoch, at))
            empty = 0 if len(tokens) else empty + 1
            if empty == count:
                raise DataError(f"{place_of(self, 'source')}: all {count} documents are empty.")
            return tokens

        return self._packer.rows(NumberedReader(read), state)

    def tokens(self, index: int) -> np.ndarray:
        """Returns the tokens of a document of the source, bos and eos included. An empty document has none."""
        document = self._source[index]
        ids = self._encode(document, index)
        if not len(ids):
            return ids
        before = self._bos if document.starts else []
        after = self._eos if document.ends else []
        return np.concatenate([np.array(before, np.int32), ids, np.array(after, np.int32)])

    def _encode(self, document: Document, index: int) -> np.ndarray:
        ids = document.content
        if isinstance(ids, str):
            try:
                ids = self._tokenizer.encode(ids)
            except Exception as e:  # Each library has its own error for text that is not Unicode.
                raise DataError(f"{self._source.place(index)}: {why_not_encoded(document.content)}: {e}") from e
        check_ids(ids, self._tokenizer.vocab_size, lambda: self._source.place(index))
        return ids.astype(np.int32, copy=False)


def why_not_encoded(content: Any) -> str:
    """Returns what is wrong with a text that a tokenizer cannot encode."""
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as e:
        return f"character {e.start} is half of a surrogate pair, and so not Unicode"
    return "the tokenizer cannot encode it"
