# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of Hugging Face: any `tokenizer.json`, with the library that wrote it."""

import os
import threading
from collections.abc import Mapping, Sequence
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
        # Names of further files in the directory of `file` that travel with it, though they do not change the encoding:
        # "tokenizer_config.json", "chat_template.jinja", and what else a copy of the model needs.
        beside: tuple[str, ...] = ()
        # Prompts get the special tokens that the file's post-processor adds, as transformers does; but no `eos_token`
        # at the end, after which there is nothing to continue.
        add_special: bool = False
        # A file that has moved: a position knows what was in it. The others are of no concern to training.
        may_change: ClassVar[frozenset[str]] = frozenset({"file", "beside", "add_special"})

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        content = self._read_file(_NAME, cfg.file)
        self._read_beside()
        try:
            self._library = _library(content, parses_special=False)  # "</s>" in a document must not end it.
        except ValueError as e:
            raise ConfigError(f"{place_of(self, 'file')}: {cfg.file!r} is not a tokenizer.json: {e}.") from e
        self._chat_library: tokenizers.Tokenizer | None = None  # Made when it is needed; threads may share both.
        self._lock = threading.Lock()
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        self._vocab_size = max(vocabulary.values(), default=-1) + 1  # Ids may have gaps.
        self._bos_id = special_id(self, "bos_token", vocabulary)
        self._eos_id = special_id(self, "eos_token", vocabulary)
        self._pad_id = special_id(self, "pad_token", vocabulary)
        self._trailing = self._count_trailing() if cfg.add_special else 0

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

    def vocabulary(self) -> Mapping[str, int]:
        return self._library.get_vocab(with_added_tokens=True)

    def encode(self, text: str) -> np.ndarray:
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=False)  # Fast: without offsets.
        return np.array(encoding.ids, np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_prompt(self, text: str) -> np.ndarray:
        if not self.cfg.add_special:
            return super().encode_prompt(text)
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=True)
        ids = np.array(encoding.ids, np.int32)
        return ids[: len(ids) - self._trailing]

    def encode_with_special(self, text: str) -> np.ndarray:
        with self._lock:  # A library of its own: what is parsed is a setting of it, which other threads rely on.
            if self._chat_library is None:
                self._chat_library = _library(self._files[_NAME], parses_special=True)
        (encoding,) = self._chat_library.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, np.int32)

    def _decode(self, ids: list[int]) -> str:
        special = (self._bos_id, self._eos_id, self._pad_id)
        return self._library.decode([i for i in ids if i not in special], skip_special_tokens=True)

    def _encoding_files(self) -> Mapping[str, bytes]:
        return {_NAME: self._files[_NAME]}

    def _count_trailing(self) -> int:
        """Returns how many eos tokens the post-processor adds at the end. That is the same for every text."""
        (encoding,) = self._library.encode_batch_fast(["a"], add_special_tokens=True)
        ids, added, count = encoding.ids, encoding.special_tokens_mask, 0
        if 0 not in added:  # No token is of the text: which come before it, and which after, is not known.
            return 0
        while added[-1 - count] and ids[-1 - count] == self._eos_id:
            count += 1
        return count

    def _read_beside(self) -> None:
        """Reads the files that travel with the tokenizer."""
        place, beside = place_of(self, "beside"), self.cfg.beside
        for name in beside:
            if not name.isprintable() or any(c in name for c in "/\\:") or name in ("", ".", ".."):
                raise ConfigError(f"{place}: {name!r} is not the name of a file in the directory of `file`.")
            if name == _NAME or beside.count(name) > 1:
                raise ConfigError(f"{place}: names {name!r} more than once; `file` is {_NAME!r} already.")
            path = os.path.join(os.path.dirname(self.cfg.file), name)
            if not self._is_given and os.path.exists(path) and not os.path.isfile(path):
                raise ConfigError(f"{place}: {path!r} is not a regular file.")
            self._read_file(name, path, "beside")


def _library(content: bytes, *, parses_special: bool) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer.from_buffer(content)
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = not parses_special
    return library
