# SPDX-License-Identifier: Apache-2.0
"""Answers in the making: what a device has drawn, as tokens of a stream, and when an answer ends."""

from typing import Any

import numpy as np

from ._device import Drawn
from ._request import Finish, Token
from ._sequence import Row, Sequence
from ._stream import Stream

Told = tuple[dict[str, Any], Finish | None, str]  # Arguments of `Stream.push`, whether the answer ends, and an error.


class Answer:
    """The answer to a request, between the sequence that is computed and the stream that is read."""

    __slots__ = ("begun", "pooled", "prompt", "sequence", "stream")

    def __init__(self, stream: Stream, sequence: Sequence) -> None:
        self.stream = stream
        self.sequence = sequence
        self.begun = False
        self.prompt: list[Token] | None = None  # Scored as far as computed.
        if stream.request.prompt_logprobs is not None:
            self.prompt = [Token(token) for token in stream.request.tokens]

        self.pooled: np.ndarray | None = None  # As far as computed.

    def read(self, row: Row, drawn: Drawn) -> None:
        """Takes what is wanted of the prompt, of a part of it."""
        if drawn.pooled is not None:
            self.pooled = drawn.pooled if self.pooled is None or not row.start else self.pooled + drawn.pooled
        if drawn.prompt_logprobs is not None:
            self._score(row, drawn)

    def _score(self, row: Row, drawn: Drawn) -> None:
        """Takes the log-probabilities of tokens of the prompt: each is of the token after."""
        most = self.stream.request.prompt_logprobs
        assert self.prompt is not None
        assert most is not None
        assert drawn.prompt_logprobs is not None
        for i in range(min(row.count, len(self.prompt) - 1 - row.start)):
            place = row.start + 1 + i
            top = _top(drawn.prompt_top_ids, drawn.prompt_top_logprobs, (i,), most)
            self.prompt[place] = Token(self.prompt[place].id, float(drawn.prompt_logprobs[i]), top)

    def draw(self, token: int, at: tuple[int, ...], drawn: Drawn) -> Told:
        """Takes a token that a call has drawn, and that the sequence has already.

        Args:
            at: where it is in what was drawn: its row, and its place among several.
        """
        request, sequence = self.stream.request, self.sequence
        if request.logprobs is None:
            told = Token(token)
        else:
            assert drawn.logprobs is not None
            top = _top(drawn.top_ids, drawn.top_logprobs, at, request.logprobs)
            told = Token(token, float(drawn.logprobs[at]), top)
        progress: dict[str, Any] = {"tokens": (told,), **self._of_prompt()}
        if token in request.stop_tokens:
            return progress, "stop", ""
        if sequence.grammar is not None:
            try:
                sequence.grammar.accept(token)
                if sequence.grammar.is_done():
                    return progress, "stop", ""
                sequence.mask = sequence.grammar.mask()
            except Exception as e:
                return progress, "error", f"the grammar has failed: {type(e).__name__}: {e}"
        return progress, "length" if len(sequence.tokens) >= sequence.limit else None, ""

    def nothing(self) -> Told:
        """Ends an answer without new tokens."""
        return self._of_prompt(), "length", ""

    def _of_prompt(self) -> dict[str, Any]:
        """What is wanted of the prompt, once."""
        found: dict[str, Any] = {}
        if self.prompt is not None:
            found["prompt"], self.prompt = tuple(self.prompt), None
        if self.pooled is not None:
            length = float(np.linalg.norm(self.pooled))
            found["embedding"], self.pooled = self.pooled / (length or 1.0), None
        return found


def _top(
    ids: np.ndarray | None, logprobs: np.ndarray | None, at: tuple[int, ...], most: int
) -> tuple[tuple[int, float], ...]:
    if not most:
        return ()
    assert ids is not None
    assert logprobs is not None
    return tuple(zip(ids[at][:most].tolist(), logprobs[at][:most].tolist(), strict=True))
