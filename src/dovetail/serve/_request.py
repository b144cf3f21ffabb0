# SPDX-License-Identifier: Apache-2.0
"""What is asked of an engine, and what it answers: token ids in, token ids out."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import numpy as np

Pooling = Literal["last", "mean"]  # Of an embedding: what the layers make of the last token, or the mean of all.
Finish = Literal["stop", "length", "abort", "error"]


class RequestError(ValueError):
    """What is asked for cannot be done, and why: the fault of who asks. `field` is the part of the request."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class QueueFull(Exception):
    """The engine has as many requests waiting as it may have; try again after some seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the queue is full. Try again in {retry_after:.0f} s.")
        self.retry_after = retry_after


class Grammar(Protocol):
    """What a text may be, as far as it has been written; one for each sequence."""

    def mask(self) -> np.ndarray:
        """Returns which tokens may come next, as bits: `[ceil(V / 32)]` of int32."""
        ...

    def accept(self, token: int) -> None:
        """Goes on by a token, which the last mask allowed."""
        ...

    def is_done(self) -> bool:
        """Whether the text is complete, so that nothing may follow but its end."""
        ...

    def copy(self) -> "Grammar":
        """Returns one at the same place, which goes on by itself."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """How the tokens of a request are drawn."""

    temperature: float = 1.0  # 0: always the most likely token.
    top_k: int = 0  # Only the k most likely tokens; 0: all.
    top_p: float = 1.0  # Only the most likely tokens that together reach this probability.
    min_p: float = 0.0  # Only tokens at least this likely, relative to the most likely one.
    repetition_penalty: float = 1.0  # Logits of tokens in prompt or output are divided (if below 0: multiplied) by it.
    presence_penalty: float = 0.0  # Taken from the logits of tokens in the output,
    frequency_penalty: float = 0.0  # and this as often as they are there.
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict[int, float])  # Added to logits.
    seed: int = 0

    def check(self) -> None:
        """Raises a RequestError if a value makes no sense."""
        limits = {
            "temperature": (0.0, math.inf),
            "top_k": (0, 2**31 - 1),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repetition_penalty": (0.0, math.inf),
            "presence_penalty": (-2.0, 2.0),
            "frequency_penalty": (-2.0, 2.0),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not least <= value <= most or not math.isfinite(value):
                raise RequestError(f"{name} is {value}, expected {_between(least, most)}.", name)
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise RequestError(f"{name} is 0, expected more.", name)

    @property
    def is_plain(self) -> bool:
        """Whether the most likely token is taken as it is: nothing is drawn, and nothing changes the logits."""
        return self.temperature == 0 and not self.has_penalties and not self.logit_bias

    @property
    def has_penalties(self) -> bool:
        """Whether tokens count that have been there before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


def _between(least: float, most: float) -> str:
    return f"at least {least:g}" if most in (math.inf, 2**31 - 1) else f"from {least:g} to {most:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt to go on from."""

    tokens: tuple[int, ...]  # At least one.
    max_tokens: int  # New ones. 0: only the prompt is read, for its log-probabilities or its embedding.
    draw: Draw = Draw()
    stop_tokens: frozenset[int] = frozenset()  # The text ends with one of these.
    logprobs: int | None = None  # How many alternatives to each new token are reported; 0: only the token's own.
    prompt_logprobs: int | None = None  # The same for the tokens of the prompt, from the second on.
    pooling: Pooling | None = None  # The prompt's embedding is wanted, made so.
    priority: int = 0  # Lower numbers come first.
    grammar: Grammar | None = None
    choice: int = 0  # Which of several answers to one prompt this is: others get other random numbers.
    salt: str = ""  # Prefixes are shared among requests with the same.

    @property
    def reads_all(self) -> bool:
        """Whether something is wanted of all tokens of the prompt, so that none may be known already."""
        return self.prompt_logprobs is not None or self.pooling is not None


class Token(NamedTuple):
    """A token, new or of the prompt, and how likely it was."""

    id: int
    logprob: float | None = None  # Of the model itself, before temperature and limits; None: not asked for.
    top: tuple[tuple[int, float], ...] = ()  # The most likely tokens at its place, the most likely first.


class Progress(NamedTuple):
    """What is new of an answer."""

    tokens: tuple[Token, ...] = ()
    finish: Finish | None = None  # Set in the last one. "stop": the last token is a stop token, or the grammar ended.
    error: str = ""  # With "error": what happened.
    prompt: tuple[Token, ...] = ()  # Once, before the first new token, if prompt_logprobs were asked for.
    cached: int = 0  # Tokens of the prompt that were not computed again.
    embedding: np.ndarray | None = None  # [D] float32, of length 1; with the prompt, if it was asked for.
