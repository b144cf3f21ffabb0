# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of an answer in the two forms that OpenAI has: of completions, and of chats."""

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from .._request import Token
from .._text import TokenText

_LEAST = -9999.0  # For what has no chance at all: JSON has no infinity.


class LogprobWriter:
    """Writes the log-probabilities of one choice, for the tokens as they come.

    Args:
        text_of: returns the text of a token by itself.
        offset: of the first token in the text that is answered, in characters.
        as_ids: tokens are called "token_id:5", as in vLLM, rather than by their text.
    """

    def __init__(self, text_of: Callable[[int], TokenText], *, offset: int = 0, as_ids: bool = False) -> None:
        self._text_of, self._offset, self._as_ids = text_of, offset, as_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def completion(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Returns new tokens as a part of `choices[].logprobs` of a completion."""
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            text = self._text_of(token.id)
            name = self._name(token.id, text)
            found["tokens"].append(name)
            found["token_logprobs"].append(None if token.logprob is None else _finite(token.logprob))
            found["top_logprobs"].append(self._top(token, name))
            found["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(text.bytes))
        return found

    def chat(self, tokens: Sequence[Token], top: int) -> dict[str, Any]:
        """Returns new tokens as a part of `choices[].logprobs` of a chat."""
        content = [
            {
                **self._entry(token.id, _LEAST if token.logprob is None else token.logprob),
                "top_logprobs": [self._entry(*each) for each in token.top[:top]],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._text_of(token)
        return {"token": self._name(token, text), "logprob": _finite(logprob), "bytes": list(text.bytes)}

    def _top(self, token: Token, name: str) -> dict[str, float] | None:
        """Returns the most likely tokens and the token itself; the first token of a prompt has none."""
        if token.logprob is None:
            return None
        found: dict[str, float] = {}
        for other, logprob in token.top:  # Of two with one name, the more likely one is first.
            found.setdefault(self._name(other, self._text_of(other)), _finite(logprob))
        found.setdefault(name, _finite(token.logprob))
        return found

    def _name(self, token: int, text: TokenText) -> str:
        if self._as_ids or not text.text:
            return f"token_id:{token}"
        try:
            text.bytes.decode()
        except UnicodeDecodeError:  # Part of a character: two of them must not look the same.
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text.bytes)
        return text.text


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns parts of the log-probabilities of one choice as one."""
    return {
        key: None if parts[0][key] is None else [item for part in parts for item in part[key]]
        for key in (parts[0] if parts else ())
    }


def _finite(logprob: float) -> float:
    return logprob if logprob > _LEAST else _LEAST
