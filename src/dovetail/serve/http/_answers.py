# SPDX-License-Identifier: Apache-2.0
"""`Answers`: what an engine writes for the choices of one HTTP request, as text, in the order in which it comes."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np

from dovetail.data import Tokenizer

from .._engine import Engine
from .._request import Progress, Request, Token
from .._stream import Stream
from .._text import TextStream
from ._errors import ApiError
from ._metrics import Clock, Metrics

_PARTS = 8  # That wait for a slow client; the engine's own stream has the rest.


@dataclasses.dataclass(frozen=True)
class Asked:
    """One choice that is asked for."""

    prompt: int  # Which of the prompts of the HTTP request it answers.
    request: Request
    stop: tuple[str, ...] = ()
    include_stop: bool = False  # Whether the stop string, or token, is part of the text.


@dataclasses.dataclass(frozen=True)
class Part:
    """What is new of a choice."""

    index: int
    text: str = ""
    tokens: tuple[Token, ...] = ()
    finish: str | None = None  # "stop" or "length", in the last part of a choice.
    prompt: tuple[Token, ...] = ()
    stopped: str | int | None = None  # With "stop": the string or the token of the request that ended it.
    embedding: np.ndarray | None = None  # Of the prompt, if it was asked for.


class Usage:
    """Counts the tokens of an HTTP request: each prompt once, however many choices it has."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self._prompts = {each.prompt: len(each.request.tokens) for each in asked}
        self._cached: dict[int, int] = {}
        self._new = 0

    def add(self, prompt: int, progress: Progress, tokens: int) -> None:
        """Counts what is new of a choice."""
        self._new += tokens
        if progress.tokens or progress.finish is not None:  # Of several choices, one has computed the prompt.
            self._cached[prompt] = min(self._cached.get(prompt, progress.cached), progress.cached)

    @property
    def body(self) -> dict[str, Any]:
        prompt = sum(self._prompts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._new,
            "total_tokens": prompt + self._new,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }


class Answers:
    """The choices of one HTTP request, from the moment they are submitted; all of them, or none.

    Whoever makes it closes it, and what is not finished by then is cancelled.

    Args:
        seconds: after which the request is given up.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, asked: Sequence[Asked], *, metrics: Metrics, seconds: float
    ) -> None:
        self._tokenizer, self._asked, self._metrics = tokenizer, asked, metrics
        self._seconds, self._deadline = seconds, time.monotonic() + seconds
        self._parts: asyncio.Queue[Part | Exception] = asyncio.Queue(_PARTS)
        self._clocks = [metrics.clock() for _ in asked]
        self._streams: list[Stream] = []
        self._readers: list[asyncio.Task[None]] = []
        self.usage = Usage(asked)
        try:
            for each in asked:
                self._streams.append(engine.submit(each.request))
        except BaseException:
            self._cancel()
            raise

    async def parts(self) -> AsyncIterator[Part]:
        """Yields all parts of all choices. Raises an ApiError where one of them fails, or takes too long."""
        chosen = zip(self._asked, self._streams, self._clocks, strict=True)
        self._readers = [asyncio.create_task(self._read(index, *each)) for index, each in enumerate(chosen)]
        left = len(self._readers)
        while left:
            part = await self._next()
            left -= part.finish is not None
            yield part

    async def close(self) -> None:
        """Cancels what is not finished."""
        self._cancel()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()
        for clock in self._clocks[: len(self._streams)]:
            clock.finish("abort")  # Those that have finished have said so.

    async def _next(self) -> Part:
        try:
            async with asyncio.timeout(max(0, self._deadline - time.monotonic())):
                part = await self._parts.get()
        except TimeoutError:
            message = f"The request took more than {self._seconds:g} s, which is the limit of this server."
            raise ApiError(504, message, code="timeout") from None
        if isinstance(part, Exception):
            raise part
        return part

    async def _read(self, index: int, asked: Asked, stream: Stream, clock: Clock) -> None:
        try:
            writer = _ChoiceWriter(
                index, asked, TextStream(self._tokenizer, asked.stop, include_stop=asked.include_stop)
            )
            async for progress in stream:
                part = writer.write(progress)
                self.usage.add(asked.prompt, progress, len(part.tokens))
                clock.tokens(len(part.tokens))
                if part.finish is not None:
                    clock.finish(part.finish)
                    stream.cancel()  # A stop string ends what the engine would go on with.
                await self._parts.put(part)
                if part.finish is not None:
                    return
            raise ApiError(500, "The engine ended before the answer did.", code="internal_error")
        except Exception as e:
            clock.finish("error")
            await self._parts.put(e)


class _ChoiceWriter:
    """Makes text of one choice."""

    def __init__(self, index: int, asked: Asked, text: TextStream) -> None:
        self._index, self._asked, self._text = index, asked, text

    def write(self, progress: Progress) -> Part:
        finish, text = progress.finish, ""
        if finish in ("error", "abort"):
            raise _failed(progress)
        for count, token in enumerate(progress.tokens, 1):
            is_last = finish is not None and count == len(progress.tokens)
            if not (is_last and self._is_hidden(progress, token)):
                text += self._text.push([token.id])
            if is_last:
                text += self._text.finish()
            if self._text.stopped is not None:
                tokens = progress.tokens[:count]
                return Part(self._index, text, tokens, "stop", progress.prompt, self._text.stopped)
        if finish is not None and not progress.tokens:
            text += self._text.finish()
        stopped = self._token_that_stopped(progress) if finish == "stop" else None
        return Part(self._index, text, progress.tokens, finish, progress.prompt, stopped, progress.embedding)

    def _is_hidden(self, progress: Progress, token: Token) -> bool:
        """Whether the last token is one that ends the text, which is then not part of it."""
        is_stop = progress.finish == "stop" and token.id in self._asked.request.stop_tokens
        return is_stop and not self._asked.include_stop

    def _token_that_stopped(self, progress: Progress) -> int | None:
        last = progress.tokens[-1].id if progress.tokens else None
        return last if last in self._asked.request.stop_tokens else None


def _failed(progress: Progress) -> ApiError:
    if progress.finish == "abort":
        return ApiError(503, "The server is shutting down.", code="shutting_down", retry_after=5)
    return ApiError(500, f"The engine failed: {progress.error or 'it did not say why'}.", code="internal_error")


async def collected(answers: Answers, take: Callable[[Part], None]) -> None:
    """Takes all parts, and closes the answers."""
    try:
        async for part in answers.parts():
            take(part)
    finally:
        await answers.close()
