# SPDX-License-Identifier: Apache-2.0
"""A client of OpenAI's interface that says when tokens came. It needs the standard library alone.

A load is a number of requests that are open at a time (`8`), a rate (`2/s`: requests come when the trace says) or `inf`
(all at once).
"""

import asyncio
import json
import math
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from _trace import Asked


class ServerError(RuntimeError):
    """A server did not answer as it should."""


class Answer(NamedTuple):
    """What came back for a request; times in seconds."""

    start: float
    times: tuple[float, ...]  # When text came, which is mostly for each token.
    end: float
    tokens: int  # As the server counts them.

    @property
    def ttft(self) -> float:
        """Seconds until the first token."""
        return self.times[0] - self.start

    @property
    def tpot(self) -> float:
        """Seconds for each token after the first."""
        return (self.times[-1] - self.times[0]) / (self.tokens - 1) if self.tokens > 1 else math.nan


class Loaded(NamedTuple):
    """All answers to a trace, medians in seconds."""

    answers: list[Answer]

    @property
    def ttft(self) -> float:
        return statistics.median(each.ttft for each in self.answers)

    @property
    def tpot(self) -> float:
        return statistics.median(each.tpot for each in self.answers if each.tokens > 1)

    @property
    def step(self) -> float:
        """Seconds from a token to the next while all are being answered, after the prompts of all; NaN if never."""
        start = max(each.times[0] for each in self.answers)
        end = min(each.times[-1] for each in self.answers)
        within = [[at for at in each.times if start <= at <= end] for each in self.answers]
        steps = [(times[-1] - times[0]) / (len(times) - 1) for times in within if len(times) > 1]
        return statistics.median(steps) if steps else math.nan

    @property
    def rate(self) -> float:
        """Output tokens per second, from the first request to the last answer."""
        seconds = max(each.end for each in self.answers) - min(each.start for each in self.answers)
        return sum(each.tokens for each in self.answers) / seconds


class Client:
    """Sends requests to a server, each over a connection of its own."""

    def __init__(self, url: str, *, timeout: float = 600.0, **fields: Any) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port, self._timeout = parts.hostname, parts.port or 80, timeout
        self._fields = {"temperature": 0, "ignore_eos": True, **fields}

    def load(self, trace: Sequence[Asked], load: str) -> Loaded:
        """Sends all requests under a load, and waits for the answers."""
        return Loaded(asyncio.run(self._load(trace, load)))

    def ask(self, asked: Asked) -> Answer:
        """Sends one request."""
        return self.load([asked], "1").answers[0]

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a body, and returns the answer, which is not streamed."""

        async def whole() -> bytes:
            return b"".join([line async for line in self._lines("POST", path, body)])

        return json.loads(asyncio.run(asyncio.wait_for(whole(), self._timeout)))

    def is_ready(self) -> bool:
        """Returns whether the server takes requests."""

        async def whole() -> None:
            async for _ in self._lines("GET", "/health"):
                pass

        try:
            asyncio.run(asyncio.wait_for(whole(), 5.0))
        except (ServerError, OSError, TimeoutError):
            return False
        return True

    async def _load(self, trace: Sequence[Asked], load: str) -> list[Answer]:
        if load == "inf" or load.endswith("/s"):
            rate = math.inf if load == "inf" else float(load.removesuffix("/s"))

            async def later(asked: Asked) -> Answer:
                await asyncio.sleep(asked.arrival / rate)
                return await self._timed(asked)

            return list(await asyncio.gather(*map(later, trace)))
        waiting, answers = list(reversed(trace)), list[Answer]()

        async def worker() -> None:
            while waiting:
                answers.append(await self._timed(waiting.pop()))

        await asyncio.gather(*(worker() for _ in range(int(load))))
        return answers

    async def _timed(self, asked: Asked) -> Answer:
        return await asyncio.wait_for(self._one(asked), self._timeout)

    async def _one(self, asked: Asked) -> Answer:
        body = {
            **self._fields,
            "prompt": asked.prompt,
            "max_tokens": asked.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        start, times, usage = time.perf_counter(), list[float](), {}
        async for line in self._lines("POST", "/v1/completions", body):
            if not line.startswith(b"data: ") or line[6:].strip() == b"[DONE]":
                continue
            chunk = json.loads(line[6:])
            if chunk.get("error"):
                raise ServerError(f"the server answered {chunk['error']}")
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices") or ():
                if choice.get("text") or not choice.get("finish_reason"):
                    times.append(time.perf_counter())
        if not times or not usage:
            raise ServerError("the server sent no text, or did not say how many tokens there are.")
        if usage["completion_tokens"] != asked.max_tokens:
            raise ServerError(f"the server sent {usage['completion_tokens']} tokens, expected {asked.max_tokens}.")
        return Answer(start, tuple(times), time.perf_counter(), usage["completion_tokens"])

    async def _lines(self, method: str, path: str, body: Any = None) -> AsyncIterator[bytes]:
        """Yields the lines of an answer as they come."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=2**24)
        try:
            data = b"" if body is None else json.dumps(body).encode()
            head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            await writer.drain()
            status, headers = await _head(reader)
            parts = _parts(reader, headers)
            if status != 200:
                said = b"".join([part async for part in parts])
                raise ServerError(
                    f"{method} {path}: the server answered {status} {said[:300].decode(errors='replace')}"
                )
            rest = b""
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield line
            if rest:
                yield rest
        except (asyncio.IncompleteReadError, ValueError) as e:
            raise ServerError(f"{method} {path}: the answer broke off: {e}") from e
        finally:
            writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines if line)
    return int(first.split()[1]), {name.lower(): value.strip().lower() for name, _, value in fields}


async def _parts(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """Yields the body as it comes: in chunks, of a known length, or to the end of the connection."""
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(2**16):
            yield part
