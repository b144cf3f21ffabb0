# SPDX-License-Identifier: Apache-2.0
"""`Tokenizer`: text to token ids and back. It carries the files it was made from, so that a checkpoint can too."""

import abc
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.config import Component, ConfigError, did_you_mean

from ._errors import DataError, place_of


class Tokenizer(Component, abc.ABC):
    """Text to token ids and back.

    `files` are the contents of the files it is made from, by name. Without them they are read from disk, so these make
    the same tokenizer, the second one anywhere: `cfg.build()` and `cfg.build(files=tokenizer.files())`.
    """

    def __init__(self, cfg: Component.Config, *, files: Mapping[str, bytes] | None = None, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._is_given = files is not None  # Then nothing is read from disk: the config may come from elsewhere.
        self._files = {} if files is None else dict(files)

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    @abc.abstractmethod
    def bos_id(self) -> int | None:
        """The token before a document, if there is one."""

    @property
    @abc.abstractmethod
    def eos_id(self) -> int | None:
        """The token after a document, if there is one."""

    @property
    @abc.abstractmethod
    def pad_id(self) -> int | None:
        """The token that fills up, if there is one."""

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of `text` (int32). No special token is among them, also where the text spells one out."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text, as `encode` gives them; faster where a library takes many at once."""
        return [self.encode(text) for text in texts]

    def vocabulary(self) -> Mapping[str, int]:
        """Returns the ids of tokens by name, as far as they have names; special tokens among them."""
        return {}

    @property
    def prompts_start_with_bos(self) -> bool:
        """Whether the bos token comes before what a model is given to continue. A tokenizer's config may say so."""
        return False

    def encode_prompt(self, text: str) -> np.ndarray:
        """Returns the ids (int32) that a model is given to continue: `encode(text)`, perhaps after the bos token."""
        ids = self.encode(text)
        if not self.prompts_start_with_bos:
            return ids
        if self.bos_id is None:
            raise ConfigError(f"{place_of(self)}: prompts start with the bos token, but there is none. Name it.")
        return np.concatenate([np.array([self.bos_id], np.int32), ids])

    def encode_with_special(self, text: str) -> np.ndarray:
        """Returns the ids of `text` (int32) where a special token that is spelled out is that token: of a chat, say.

        Only for text whose every part may speak for the model: a user who writes "</s>" ends the text.
        """
        raise ConfigError(
            f"{place_of(self)}: {type(self).__name__} has no special tokens that text can spell out, as chats do.\n"
            "  Use a HuggingFaceTokenizer, or a prompt without special tokens."
        )

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of `ids`, without special tokens."""
        array = np.asarray(ids, np.int64)
        check_ids(array, self.vocab_size, lambda: "decode")
        return self._decode(array.tolist())

    @abc.abstractmethod
    def _decode(self, ids: list[int]) -> str: ...

    def files(self) -> dict[str, bytes]:
        """Returns the contents of the files this tokenizer is made from, by name."""
        return dict(self._files)

    def fingerprint(self) -> str:
        """Returns a short text that differs for tokenizers that encode differently."""
        ids = (self.vocab_size, self.bos_id, self.eos_id, self.pad_id)
        content = repr((type(self).__name__, ids, sorted(self._encoding_files().items())))
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def _encoding_files(self) -> Mapping[str, bytes]:
        """The files that say how text is encoded; the others only travel with them."""
        return self._files

    def __reduce__(self) -> Any:
        return _rebuild, (self.cfg, self._files, self._path)

    def _read_file(self, name: str, path: str, field: str = "file") -> bytes:
        """Returns the file called `name`: the one given to the constructor, or else the one at `path`."""
        if not self._is_given:
            try:
                with open(path, "rb") as f:
                    self._files[name] = f.read()
            except OSError as e:
                raise ConfigError(f"{place_of(self, field)}: cannot read {path!r}: {e.strerror}.") from None
        if name not in self._files:
            found = ", ".join(map(repr, self._files)) or "none"
            raise ConfigError(f"{place_of(self)}: is made from a file called {name!r}, was given {found}.")
        return self._files[name]


class KnownTokenizer(NamedTuple):
    """A tokenizer that data was prepared with."""

    cfg: Tokenizer.Config
    files: Mapping[str, bytes]  # That it is made from: they need not be where they were.


def _rebuild(cfg: Component.Config, files: dict[str, bytes], path: str) -> Any:
    return cfg.build(files=files or None, path=path)


def check_ids(ids: np.ndarray, vocab_size: int, place: Callable[[], str]) -> None:
    """Raises if an id is not in the vocabulary; `place()` says whose ids they are."""
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        at = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise DataError(
            f"{place()}: token {at} of {len(ids)} is {ids[at]}, outside the vocabulary of {vocab_size}.\n"
            "  Was it made with another tokenizer?"
        )


def special_to_add(component: Component, field: str, token: int | None) -> list[int]:
    """Returns the special token that a field (`add_bos`, `add_eos`) of a component asks for, if any, as a list."""
    if not getattr(component.cfg, field):
        return []
    if token is None:
        name = field.removeprefix("add_")
        raise ConfigError(
            f"{place_of(component, field)}: the tokenizer has no {name} token.\n"
            f"  Name one in its config if that has a field {name}_token, or set {field}=False."
        )
    return [token]


def special_id(tokenizer: Tokenizer, field: str, vocabulary: Mapping[str, int]) -> int | None:
    """Returns the id of the token named in a field of the config, or None if the field is."""
    token = getattr(tokenizer.cfg, field)
    if token is not None and token not in vocabulary:
        hint = did_you_mean(token, vocabulary)
        raise ConfigError(f"{place_of(tokenizer, field)}: the vocabulary has no token {token!r}.{hint}")
    return None if token is None else vocabulary[token]


class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8 as ids 0 to 255, then the special tokens bos (256), eos (257) and pad (258).

    >>> tokenizer = ByteTokenizer.Config().build()
    >>> tokenizer.encode("héé").tolist(), tokenizer.decode([104, 105, tokenizer.eos_id])
    ([104, 195, 169, 195, 169], 'hi')
    """

    @property
    def vocab_size(self) -> int:
        return 259

    @property
    def bos_id(self) -> int:
        return 256

    @property
    def eos_id(self) -> int:
        return 257

    @property
    def pad_id(self) -> int:
        return 258

    def vocabulary(self) -> Mapping[str, int]:
        return {"bos": 256, "eos": 257, "pad": 258}

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)

    def _decode(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")
