# SPDX-License-Identifier: Apache-2.0
"""Constrained output: only tokens may be drawn that lead to text of a JSON schema, a regular expression, or a list.

The work is done by `llguidance`, of the extra `serve`. Who asks is not trusted: what is compiled is limited in size, in
the steps that it takes, and in time.

Shape letters: V vocabulary.
"""

import collections
import decimal
import json
import math
import threading
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.config import ConfigError
from dovetail.data import Tokenizer

from ._request import Grammar, RequestError
from ._text import token_text

if TYPE_CHECKING:
    import llguidance

# White space within JSON: one space, or a new line and how far it is indented. Without a limit, models fall into
# writing spaces for ever.
_WHITESPACE = r" |\n[ \t]{0,24}"
_CHARACTERS = 1 << 18  # Of a grammar.
_RUNNING = 2  # Grammars that are compiled at once. One that takes too long cannot be interrupted, and takes up a place.
_KEPT = 64  # Compiled grammars.
_MULTIPLE = 100_000  # Of "multipleOf" in a schema: that many states, which no limit of llguidance counts.
_LIMITS = {  # Units are those of llguidance; a step takes at most about 20 ms, a state about 2 kB.
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
}


class GrammarCompiler:
    """Makes grammars for the tokens of a tokenizer. Threads may share it.

    >>> from dovetail.data import ByteTokenizer
    >>> grammar = GrammarCompiler(ByteTokenizer.Config().build()).choice(["yes", "no"])
    >>> for byte in b"no":
    ...     grammar.accept(byte)
    >>> grammar.is_done()
    True

    Args:
        vocab_size: V, of the model, where it has room for more tokens than the tokenizer has.
        end_tokens: those that may come after a complete text, and only there; by default, the tokenizer's eos token.
        seconds: that a grammar may take to compile.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int | None = None,
        end_tokens: Sequence[int] | None = None,
        seconds: float = 5.0,
    ) -> None:
        self._library = _library()
        ends = [tokenizer.eos_id] if end_tokens is None else list(end_tokens)
        known = [i for i in ends if i is not None and 0 <= i < tokenizer.vocab_size]
        if not known or len(known) < len(ends):
            raise ConfigError(
                f"constrained output needs a token that ends a text, found {ends}.\n"
                "  Name the eos token of the tokenizer, or end_tokens from its vocabulary."
            )
        self._tokens = _tokens(self._library, tokenizer, known)
        self._words = -(-(vocab_size or tokenizer.vocab_size) // 32)
        self._limits = self._library.LLParserLimits(**_LIMITS, verbose_errors=False)
        self._seconds = seconds
        self._places = threading.BoundedSemaphore(_RUNNING)
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[str, llguidance.LLMatcher] = collections.OrderedDict()

    def json_schema(self, schema: Mapping[str, Any] | bool | str, *, field: str = "json_schema") -> Grammar:
        """Returns a grammar of the JSON texts that a schema describes, given as it is or as text.

        What the schema asks for and cannot be held is an error. `field` is named in errors.
        """
        try:
            found = json.loads(schema) if isinstance(schema, str) else schema
            found = {} if found is True else found  # Any text.
            text = json.dumps(found, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as e:
            raise RequestError(f"{field}: the schema is not JSON: {_short(e)}", field) from e
        if not isinstance(found, Mapping):
            raise RequestError(f"{field}: the schema is {_short(found)}, expected an object.", field)
        _check_size(text, field)
        _check_multiples(found, field)
        # What a schema says of white space under "x-guidance" does not count: it comes from whoever asks.
        options: Any = {"whitespace_pattern": _WHITESPACE, "whitespace_flexible": True, "lenient": False}
        options |= {"item_separator": ",", "key_separator": ":", "coerce_one_of": True}
        try:
            grammar = self._library.LLMatcher.grammar_from_json_schema(text, overrides=options)
        except ValueError as e:
            raise RequestError(f"{field}: {_short(e)}", field) from e
        return self._compile(grammar, field)

    def json_object(self, *, field: str = "response_format") -> Grammar:
        """Returns a grammar of all JSON objects."""
        return self.json_schema({"type": "object"}, field=field)

    def regex(self, pattern: str, *, field: str = "regex") -> Grammar:
        """Returns a grammar of the texts that match a regular expression as a whole."""
        _check_size(pattern, field)
        pattern = pattern.removeprefix("^")
        if pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2:
            pattern = pattern[:-1]
        return self._compile(self._library.LLMatcher.grammar_from_regex(pattern), field)

    def choice(self, choices: Sequence[str], *, field: str = "choice") -> Grammar:
        """Returns a grammar of a few texts."""
        if not choices or not all(choices) or not all(isinstance(each, str) for each in choices):
            raise RequestError(
                f"{field}: expected one text or more, none of them empty, found {_short(choices)}.", field
            )
        _check_size("".join(choices), field)
        return self.regex("|".join("".join(f"\\x{{{ord(c):x}}}" for c in each) for each in choices), field=field)

    def _compile(self, grammar: str, field: str) -> Grammar:
        with self._lock:
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
                return _Matched(kept.deep_copy(), self._words, field)
        matcher = self._run(grammar, field)
        if matcher.is_error():
            raise RequestError(f"{field}: {_short(matcher.get_error())}", field)
        with self._lock:
            self._kept[grammar] = matcher
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return _Matched(matcher.deep_copy(), self._words, field)

    def _run(self, grammar: str, field: str) -> "llguidance.LLMatcher":
        """Compiles in a thread that is left to itself after some time: it ends when it meets one of the limits."""
        if not self._places.acquire(timeout=self._seconds):
            raise RequestError(f"{field}: other grammars are being compiled. Try again later.", field)
        found: list[llguidance.LLMatcher] = []

        def run() -> None:
            try:
                matcher = self._library.LLMatcher(self._tokens, grammar, log_level=0, limits=self._limits)
                tried = matcher.deep_copy()
                tried.compute_bitmask()  # Some errors show only here.
                found.append(tried if tried.is_error() else matcher)
            finally:
                self._places.release()

        thread = threading.Thread(target=run, name="grammar", daemon=True)
        thread.start()
        thread.join(self._seconds)
        if not found:
            raise RequestError(f"{field}: takes more than {self._seconds:g} s to compile. Use a simpler one.", field)
        return found[0]


class _Matched:
    """A grammar, as far as a text has been written."""

    def __init__(self, matcher: "llguidance.LLMatcher", words: int, field: str) -> None:
        self._matcher, self._words, self._field = matcher, words, field

    def mask(self) -> np.ndarray:
        """Returns which tokens may come next. A RequestError says that the grammar takes too long to follow."""
        found = np.frombuffer(self._matcher.compute_bitmask(), "<i4")
        self._check()
        words = np.zeros(self._words, np.int32)
        size = min(self._words, len(found))
        words[:size] = found[:size]
        if not words.any():
            raise RequestError(f"{self._field}: no token of the vocabulary can go on.", self._field)
        return words

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def is_done(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def copy(self) -> "_Matched":
        return _Matched(self._matcher.deep_copy(), self._words, self._field)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"{self._field}: {_short(self._matcher.get_error())}", self._field)


def _check_size(text: str, field: str) -> None:
    if not isinstance(text, str):
        raise RequestError(f"{field}: expected text, found {_short(text)}.", field)
    if len(text) > _CHARACTERS:
        raise RequestError(f"{field}: has {len(text)} characters, expected at most {_CHARACTERS}.", field)


def _check_multiples(schema: Any, field: str) -> None:
    """Raises if numbers must be multiples of what takes too long to divide by; at worst, of all that are named."""
    found: list[decimal.Decimal] = []
    left = [schema]
    while left:
        node = left.pop()
        if isinstance(node, Mapping):
            value = node.get("multipleOf")
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found.append(decimal.Decimal(str(value)))
            left.extend(node.values())
        elif isinstance(node, (list, tuple)):
            left.extend(node)
    decimals = max((-int(each.as_tuple().exponent) for each in found), default=0)
    common = 1
    for each in found:
        if each > 0 and common.bit_length() < 1 << 14:  # More than zeros of floats can be.
            common = math.lcm(common, int(each.scaleb(max(0, decimals))))
    while common and common % 10 == 0:  # Zeros at the end cost nothing.
        common //= 10
    if common > _MULTIPLE:
        shown = common if common < 1 << 64 else "what they have in common"
        raise RequestError(f"{field}: multipleOf: {shown} is too large, expected at most {_MULTIPLE}.", field)


def _short(found: object) -> str:
    text = found if isinstance(found, str) else str(found) if isinstance(found, Exception) else repr(found)
    text = text.partition("<non-verbose")[0].strip()
    return text if len(text) <= 300 else text[:300] + "..."


def _library() -> types.ModuleType:
    try:
        import llguidance
    except ImportError as e:
        message = "constrained output needs the package llguidance: pip install 'dovetail[serve]'"
        raise ConfigError(message) from e
    return llguidance


def _tokens(library: Any, tokenizer: Tokenizer, ends: list[int]) -> "llguidance.LLTokenizer":
    """Returns the bytes of all tokens. Tokens without text, special ones among them, are never allowed."""
    contents = [token_text(tokenizer, i).bytes for i in range(tokenizer.vocab_size)]
    nameless = {*ends, *(i for i, content in enumerate(contents) if not content)}
    contents = [f"<{i}>".encode() if i in nameless else content for i, content in enumerate(contents)]
    return library.LLTokenizer(_Tokens(tokenizer, contents, sorted(nameless), ends[0]), eos_token=ends)


class _Tokens:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, contents: list[bytes], special: list[int], end: int) -> None:
        self.tokens, self.special_token_ids = contents, special
        self.bos_token_id, self.eos_token_id = tokenizer.bos_id, end
        self._tokenizer = tokenizer
        self._before = tokenizer.encode("=").tolist()
        hidden = set(special)
        self._by_content = {content: i for i, content in enumerate(contents) if i not in hidden}
        self._longest = max(map(len, self._by_content), default=0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Returns the tokens of a text within another: as the tokenizer has it, unless that adds a space."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        ids = self._tokenizer.encode("=" + data.decode(errors="replace")).tolist()
        count = len(self._before)
        if ids[:count] == self._before and b"".join(self.tokens[i] for i in ids[count:]) == data:
            return ids[count:]
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        ids, start = list[int](), 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._by_content), None)
            if end is None:  # What no token has cannot be written; the grammar finds that by itself.
                break
            ids.append(self._by_content[data[start:end]])
            start = end
        return ids
