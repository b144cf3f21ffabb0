# SPDX-License-Identifier: Apache-2.0
"""SentencePiece models, as many published language models use them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dovetail.config import REQUIRED, ConfigError

from ._errors import optional_import, place_of
from ._tokenizer import Tokenizer

_NAME = "tokenizer.model"


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer from a SentencePiece model; the special tokens are those of the model. Needs the extra `data`.

    A model may normalise its input (runs of spaces, for example), and then `decode(encode(text))` is not `text`.
    """

    class Config(Tokenizer.Config):
        file: str = REQUIRED
        may_change: ClassVar[frozenset[str]] = frozenset({"file"})  # Moved: a position knows what was in it.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        library = optional_import("sentencepiece", component=self)
        content = self._read_file(_NAME, cfg.file)
        try:
            self._model = library.SentencePieceProcessor(model_proto=content)
        except RuntimeError as e:
            raise ConfigError(f"{place_of(self, 'file')}: {cfg.file!r} is not a SentencePiece model.") from e

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size()

    @property
    def bos_id(self) -> int | None:
        return _id_or_none(self._model.bos_id())

    @property
    def eos_id(self) -> int | None:
        return _id_or_none(self._model.eos_id())

    @property
    def pad_id(self) -> int | None:
        return _id_or_none(self._model.pad_id())

    def vocabulary(self) -> Mapping[str, int]:
        return {self._model.id_to_piece(token): token for token in range(self.vocab_size)}

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._model.encode(text), np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(ids, np.int32) for ids in self._model.encode(list(texts))]

    def _decode(self, ids: list[int]) -> str:
        return self._model.decode(ids)


def _id_or_none(found: int) -> int | None:
    return None if found < 0 else found
