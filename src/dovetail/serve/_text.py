# SPDX-License-Identifier: Apache-2.0
"""Text of tokens as they come: what may be shown already, where a stop string ends it, and the part of each token.

The text of a stream is `decode` of all its ids, whatever the parts they came in. Ids outside the vocabulary of the
tokenizer, which a model may have room for, have no text. Where ids end in the middle of a character, both end with
U+FFFD. There is one exception, tokenizers with tokens for bytes of which `decode` gives up a whole run ("A", then half
a character, is two U+FFFD): text that has been shown stays, so that here it is "A" and U+FFFD.
"""

import codecs
import functools
import re
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers

from dovetail.data import ByteTokenizer, Tokenizer

from ._request import RequestError

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_UNFINISHED = 3  # Bytes of a character that is not complete, at most; each may be decoded as one U+FFFD.
_LONGEST = 256  # Tokens that are decoded again for each new one, where a text makes no sense.


class _ByteStream:
    """Text of bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(bytes([token])) if token < 256 else ""

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _PrefixStream:
    """Text of any tokens: what `decode` adds when they follow those of which the text is known.

    They are decoded after some tokens before them, as tokens that begin a text may lose their leading space.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []  # Tokens whose text is shown,
        self._base = ""  # their text,
        self._pending: list[int] = []  # the tokens after them,
        self._shown = 0  # and how many characters of their text are shown.

    def push(self, token: int) -> str:
        self._pending.append(token)
        text = self._pending_text()
        end = len(text)
        while end > max(0, len(text) - _UNFINISHED) and text[end - 1] == _BROKEN:
            end -= 1
        is_whole = 0 < end == len(text)
        if len(self._pending) >= _LONGEST:
            end, is_whole = len(text), True
        new = text[self._shown : end]
        self._shown = max(self._shown, end)
        if is_whole:
            self._context, self._pending, self._shown = self._pending, [], 0
            self._base = self._decode(self._context)
        return new

    def finish(self) -> str:
        return self._pending_text()[self._shown :] if self._pending else ""

    def _pending_text(self) -> str:
        text = self._decode(self._context + self._pending)
        if text.startswith(self._base):
            return text[len(self._base) :]
        self._context, self._base = [], ""  # It took back what is shown.
        return self._decode(self._pending)


def _stream(tokenizer: Tokenizer) -> _ByteStream | _PrefixStream:
    return _ByteStream() if isinstance(tokenizer, ByteTokenizer) else _PrefixStream(tokenizer.decode)


class TextStream:
    """The text of one answer, for the tokens as they come.

    >>> stream = TextStream(ByteTokenizer.Config().build(), stop=["END"])
    >>> [stream.push([byte]) for byte in "né EN ENDE".encode()]
    ['n', '', 'é', ' ', '', '', 'EN ', '', '', '', '']
    >>> stream.stopped
    'END'

    Args:
        stop: strings that end the text. The one whose end comes first ends it; of several, the longest.
        include_stop: whether the string is part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, include_stop: bool = False) -> None:
        if not all(stop):
            raise RequestError("a stop string is empty, expected at least one character.", "stop")
        self._size = tokenizer.vocab_size
        self._tokens = _stream(tokenizer)
        self._stop, self._include_stop = tuple(stop), include_stop
        self._held = ""  # Text that may be the start of a stop string.
        self._is_finished = False
        self.stopped: str | None = None  # The stop string that was found.

    def push(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text that is new, and stays as it is. After a stop string nothing is."""
        assert not self._is_finished, "the text has been finished"
        return self._search("".join(self._tokens.push(int(i)) for i in ids if 0 <= i < self._size), is_last=False)

    def finish(self) -> str:
        """Returns what was held back, at the end: half characters as U+FFFD, and what might have become a stop string.

        The text may still be stopped by it.
        """
        if self._is_finished:
            return ""
        self._is_finished = True
        return self._search(self._tokens.finish(), is_last=True)

    def _search(self, new: str, is_last: bool) -> str:
        if self.stopped is not None:
            return ""
        text = self._held + new
        found = [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            end, start, self.stopped = min(found)
            self._held = ""
            return text[: end if self._include_stop else start]
        safe = len(text) if is_last else len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[safe:]
        return text[:safe]


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the end of a text are the start of a string, but not all of it."""
    longest = min(len(stop) - 1, len(text))
    return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)


class TokenText(NamedTuple):
    """The part of a text that is one token's."""

    text: str  # U+FFFD where it is part of a character; the name of a special token.
    bytes: bytes  # Nothing for special tokens, so that those of all tokens make the text.
    offset: int = 0  # Where it begins in the text: in characters (that are complete before it),
    start: int = 0  # and in bytes.


def token_text(tokenizer: Tokenizer, token: int) -> TokenText:
    """Returns the text of a token by itself, as it is within a text: an alternative to another one, say."""
    if not 0 <= token < tokenizer.vocab_size:
        return TokenText("", b"")
    pieces = _pieces(tokenizer)
    content = pieces.content(token)
    if content is None:
        content = _after_others(tokenizer, token).encode()
    return TokenText(content.decode(errors="replace") or pieces.name(token), content)


def token_texts(tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray) -> list[TokenText]:
    """Returns the part of each token in the text of all. Their bytes, joined, are that text.

    Where several tokens make a character, and the tokenizer does not tell the bytes of each, the last has them all.
    """
    pieces, stream = _pieces(tokenizer), _stream(tokenizer)
    contents: list[bytes] = []
    first = 0  # Of the tokens whose bytes are not in the text yet.
    guessed = -1  # The last token whose bytes the tokenizer does not tell.
    for place, token in enumerate(map(int, ids)):
        is_known = 0 <= token < tokenizer.vocab_size
        new = stream.push(token) if is_known else ""
        content = pieces.content(token) if is_known else b""
        if content is None:  # Bytes that wait and are no character would be in its text, too.
            content = token_text(tokenizer, token).bytes if any(contents[first:]) else new.encode()
            guessed = place
        contents.append(content)
        first = place + 1 if new else first
    if guessed >= 0 and not any(contents[guessed + 1 :]):
        contents[guessed] += stream.finish().encode()
    return _placed([pieces.name(int(i)) for i in ids], contents)


def _placed(names: Sequence[str], contents: Sequence[bytes]) -> list[TokenText]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found, offset, start = list[TokenText](), 0, 0
    for name, content in zip(names, contents, strict=True):
        found.append(TokenText(content.decode(errors="replace") or name, content, offset, start))
        offset, start = offset + len(decoder.decode(content)), start + len(content)
    return found


def _after_others(tokenizer: Tokenizer, token: int) -> str:
    """Returns the text of a token after others, where it keeps a leading space."""
    before = tokenizer.encode("a").tolist()
    text, base = tokenizer.decode([*before, token]), tokenizer.decode(before)
    return text[len(base) :] if text.startswith(base) else tokenizer.decode([token])


_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class _Pieces:
    """What a tokenizer's file says of its tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._is_bytes = isinstance(tokenizer, ByteTokenizer)
        special = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
        self._special = {i for i in special if i is not None}
        self._piece: Callable[[int], str | None] = lambda token: None
        decoder, files = "", tokenizer.files()
        if "tokenizer.json" in files:
            library = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
            self._special |= {i for i, token in library.get_added_tokens_decoder().items() if token.special}
            self._piece = library.id_to_token
            decoder = library.decoder.__getstate__().decode() if library.decoder else ""
        elif "tokenizer.model" in files:
            import sentencepiece  # Without which there would be no such tokenizer.

            self._piece = sentencepiece.SentencePieceProcessor(model_proto=files["tokenizer.model"]).id_to_piece
            decoder = '"ByteFallback"'
        self._is_byte_level = '"ByteLevel"' in decoder
        self._has_fallback = '"ByteFallback"' in decoder

    def name(self, token: int) -> str:
        """Returns the name of a special token; of others nothing."""
        return (self._piece(token) or "") if token in self._special else ""

    def content(self, token: int) -> bytes | None:
        """Returns the bytes of a token, or None where they depend on those before it."""
        if token in self._special:
            return b""
        if self._is_bytes:
            return bytes([token])
        piece = self._piece(token)
        if piece is None:
            return None
        if self._is_byte_level:
            return byte_level_content(piece)
        found = _BYTE_PIECE.fullmatch(piece) if self._has_fallback else None
        return bytes.fromhex(found[1]) if found else None


def byte_level_content(piece: str) -> bytes:
    """Returns the bytes that a byte-level token stands for; those of its letters, if one stands for no byte."""
    found = _byte_letters()
    known = [found[letter] for letter in piece if letter in found]
    return bytes(known) if len(known) == len(piece) else piece.encode()


@functools.cache
def _byte_letters() -> dict[str, int]:
    """Returns the letters that stand for bytes in the vocabularies of GPT-2 and those after it."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_KNOWN: "weakref.WeakKeyDictionary[Tokenizer, _Pieces]" = weakref.WeakKeyDictionary()


def _pieces(tokenizer: Tokenizer) -> _Pieces:
    found = _KNOWN.get(tokenizer)
    if found is None:
        found = _KNOWN[tokenizer] = _Pieces(tokenizer)
    return found
