# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of Hugging Face: any `tokenizer.json`, with the library that wrote it."""

from typing import Any, ClassVar

import numpy as np
import tokenizers

from dovetail.config import REQUIRED, ConfigError

from ._errors import place_of
from ._tokenizer import Tokenizer, special_id

_NAME = "tokenizer.json"


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer from a `tokenizer.json`. Truncation and padding set in the file are switched off.

    The file does not say which tokens begin and end a document: name them as in the model's `tokenizer_config.json`.
    """

    class Config(Tokenizer.Config):
        file: str = REQUIRED
        bos_token: str | None = None
        eos_token: str | None = None
        pad_token: str | None = None
        may_change: ClassVar[frozenset[str]] = frozenset({"file"})  # Moved: a position knows what was in it.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        content = self._read_file(_NAME, cfg.file)
        try:
            self._library = tokenizers.Tokenizer.from_buffer(content)
        except ValueError as e:
            raise ConfigError(f"{place_of(self, 'file')}: {cfg.file!r} is not a tokenizer.json: {e}.") from e
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True  # "</s>" in a document must not end it.
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        self._vocab_size = max(vocabulary.values(), default=-1) + 1  # Ids may have gaps.
        self._bos_id = special_id(self, "bos_token", vocabulary)
        self._eos_id = special_id(self, "eos_token", vocabulary)
        self._pad_id = special_id(self, "pad_token", vocabulary)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def bos_id(self) -> int | None:
        return self._bos_id

    @property
    def eos_id(self) -> int | None:
        return self._eos_id

    @property
    def pad_id(self) -> int | None:
        return self._pad_id

    def encode(self, text: str) -> np.ndarray:
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=False)  # Fast: without offsets.
        return np.array(encoding.ids, np.int32)

    def _decode(self, ids: list[int]) -> str:
        special = (self._bos_id, self._eos_id, self._pad_id)
        return self._library.decode([i for i in ids if i not in special], skip_special_tokens=True)
