# SPDX-License-Identifier: Apache-2.0
"""Text and a tokenizer that come with dovetail, so that a first run needs no download; origin and licence too."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dovetail.config import ConfigError, did_you_mean

from ._document import Document
from ._errors import child_path, place_of
from ._hugging_face import HuggingFaceTokenizer
from ._source import Source
from ._text import TextFiles
from ._tokenizer import Tokenizer

Split = Literal["train", "held-out"]


def corpus_path(name: str, split: Split = "train") -> Path:
    """Returns the file of a corpus that comes with dovetail; the documents in it are separated by two blank lines.

    >>> corpus_path("moby-dick", "train").name
    'train.txt'
    """
    home = _home(name)
    file = home / f"{split}.txt"
    if not file.is_file():
        splits = sorted(entry.stem for entry in home.glob("*.txt"))
        raise ConfigError(f"corpus {name!r} has no split {split!r}. It has: {', '.join(splits)}.")
    return file


def _home(name: str) -> Path:
    corpora_home = Path(str(resources.files(__package__ or "dovetail.data"))) / "corpora"
    corpora = sorted(entry.name for entry in corpora_home.iterdir() if entry.is_dir())
    if name not in corpora:
        hint = did_you_mean(name, corpora) or f" There are: {', '.join(corpora)}."
        raise ConfigError(f"no corpus {name!r} comes with dovetail.{hint}")
    return corpora_home / name


class ShippedCorpus(Source):
    """A corpus that comes with dovetail. Unlike a path, its config is the same on every machine."""

    class Config(Source.Config):
        name: str = "moby-dick"
        split: Split = "train"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        try:
            file = corpus_path(cfg.name, cfg.split)
        except ConfigError as e:
            raise ConfigError(f"{place_of(self)}: {e}") from None
        text = TextFiles.Config(files=[str(file)], separator="\n\n\n")
        self._text: TextFiles = text.build(path=child_path(self, "name"))

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, index: int) -> Document:
        return self._text[index]

    def place(self, index: int) -> str:
        return self._text.place(index)

    def size(self) -> int:
        return self._text.size()


class ShippedTokenizer(Tokenizer):
    """The tokenizer that comes with a corpus, made from its training text. Its config is the same on every machine."""

    class Config(Tokenizer.Config):
        name: str = "moby-dick"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        try:
            file = _home(cfg.name) / "tokenizer.json"
        except ConfigError as e:
            raise ConfigError(f"{place_of(self)}: {e}") from None
        self._read_file(file.name, str(file))
        inner = HuggingFaceTokenizer.Config(file=str(file), eos_token="<eos>")
        self._inner: HuggingFaceTokenizer = inner.build(files=self._files, path=child_path(self, "name"))

    @property
    def vocab_size(self) -> int:
        return self._inner.vocab_size

    @property
    def bos_id(self) -> int | None:
        return self._inner.bos_id

    @property
    def eos_id(self) -> int | None:
        return self._inner.eos_id

    @property
    def pad_id(self) -> int | None:
        return self._inner.pad_id

    def vocabulary(self) -> Mapping[str, int]:
        return self._inner.vocabulary()

    def encode(self, text: str) -> np.ndarray:
        return self._inner.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self._inner.encode_batch(texts)

    def encode_with_special(self, text: str) -> np.ndarray:
        return self._inner.encode_with_special(text)

    def _decode(self, ids: list[int]) -> str:
        return self._inner.decode(ids)
