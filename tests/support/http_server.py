# SPDX-License-Identifier: Apache-2.0
"""Servers for tests: real HTTP on loopback, a real engine, and a device that writes a text that the test knows."""

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import uvicorn

from dovetail.data import ByteTokenizer, HuggingFaceTokenizer, Tokenizer
from dovetail.serve._device import Device, DeviceShape, Drawn, Group, Rows
from dovetail.serve._engine import Engine
from dovetail.serve._request import Pooling
from dovetail.serve.http import Http, Served, address_of, build_app, open_socket
from support.small_tokenizers import small_tokenizer

TEXT = "Call me Ishmael. Some years ago—never mind how long précisément 🐋 鯨—having little money, I sailed.\n"


class ScriptedDevice(Device):
    """Draws the byte at its place in a text, over and over, whatever the prompt; or random ones, by seed and choice.

    In place of a text there may be tokens.

    A grammar takes what it allows. Log-probabilities are made up: see `logprob_of`.
    """

    def __init__(
        self, text: str | Sequence[int] = TEXT, *, slots: int = 4, vocab_size: int = 259, pooling: Pooling | None = None
    ) -> None:
        page, max_length = 8, 512
        pages = slots * (max_length // page) + 1
        self.shape = DeviceShape(
            slots=slots,
            page=page,
            groups=(Group("pages", None, pages),),
            snapshots=0,
            has_row_state=False,
            max_length=max_length,
            vocab_size=vocab_size,
            rows=(slots,),
            chunks=(32, 128),
            max_logprobs=5,
            pooling=pooling,
        )
        self.script = list(text.encode() if isinstance(text, str) else text)
        self.seconds = 0.0  # That a step takes.
        self.error: str | None = None  # The device fails with it.
        self.steps = 0
        self.params: Any = None

    def run(self, rows: Rows) -> Drawn:
        self.steps += 1
        if self.error:
            raise RuntimeError(self.error)
        count = len(rows.slots)
        tokens = np.array([self._draw(rows, i) if rows.draws[i] else 0 for i in range(count)], np.int32)
        found: dict[str, Any] = {}
        if rows.draw is not None:
            found |= self._top("", tokens)
        if rows.prompt_logprobs:
            assert rows.targets is not None
            found |= self._top("prompt_", rows.targets[0])
        if rows.pools is not None:
            found["pooled"] = rows.pools[0] @ np.stack([vector_of(int(token)) for token in rows.ids[0]])
        return Drawn(tokens, **found)

    def fetch(self, started: Drawn) -> Drawn:
        time.sleep(self.seconds)
        return started

    def save(self, slot: int, snapshot: int) -> None:
        raise AssertionError

    def count(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        pass

    def swap(self, params: Any) -> None:
        self.params = params

    def _draw(self, rows: Rows, i: int) -> int:
        place, draw = int(rows.start[i] + rows.count[i]), rows.draw
        wanted = self.script[place % len(self.script)]
        if draw is None:
            return wanted
        if draw.temperature[i] > 0:
            key = f"{draw.seed[i]} {draw.choice[i]} {draw.number[i]}".encode()
            wanted = 97 + hashlib.blake2b(key).digest()[0] % 26
        if draw.bias is not None and (bias := draw.bias[i]):
            wanted = max(bias, key=lambda token: bias[token])
        if draw.mask is None:
            return wanted
        allowed = np.flatnonzero(np.unpackbits(draw.mask[i].view(np.uint8), bitorder="little"))
        return wanted if wanted in allowed else int(allowed[place % len(allowed)])

    def _top(self, name: str, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """The most likely token is the one drawn, if it is even, and else the next one."""
        most = self.shape.max_logprobs
        ids = np.stack([(tokens + tokens % 2 + 2 * k) % 256 for k in range(most)], axis=-1).astype(np.int32)
        values = np.broadcast_to(-0.25 - np.arange(most, dtype=np.float32), ids.shape)
        logprobs = np.array([logprob_of(int(token)) for token in tokens], np.float32)
        return {f"{name}logprobs": logprobs, f"{name}top_ids": ids, f"{name}top_logprobs": values}


def logprob_of(token: int) -> float:
    """The log-probability of a token, wherever it is."""
    return -0.25 if token % 2 == 0 else -0.5


def vector_of(token: int) -> np.ndarray:
    """What the layers make of a token, wherever it is."""
    return np.array([1, token % 2, token % 3, token % 5, token % 7], np.float32)


CHAT = """\
{%- if tools %}{{ '<tools>' + tools | tojson + '</tools>' }}{% endif %}
{%- if shout is defined %}{{ 'SHOUT ' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'nobody' %}{{ raise_exception('who is nobody?') }}{% endif %}
    {{- '<s>' + message.role + ': ' + (message.content or '') + '</s>' }}
    {%- for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}
"""


def chat_tokenizer() -> Tokenizer:
    """A tokenizer with a chat template, in which the names of special tokens are those tokens."""
    names = ("chat_template.jinja", "generation_config.json")
    config = HuggingFaceTokenizer.Config(file="tokenizer.json", bos_token="<s>", eos_token="</s>", beside=names)
    files = small_tokenizer("byte_level").files()
    ends = json.dumps({"eos_token_id": [1, 2], "temperature": 0.1}).encode()
    return config.build(files={**files, names[0]: CHAT.encode(), names[1]: ends})


class Running:
    """A server that runs, and what a test may look at."""

    def __init__(self, url: str, served: Served, device: Any) -> None:
        self.url, self.served, self.device = url, served, device
        self.client = httpx.Client(base_url=url, timeout=30)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def completion(self, prompt: Any = "Hi", **fields: Any) -> dict[str, Any]:
        """The answer to a prompt, which must not fail."""
        response = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def error(self, path: str, body: Any, **options: Any) -> tuple[int, dict[str, Any]]:
        response = self.post(path, body, **options)
        return response.status_code, response.json()["error"]

    def events(self, path: str, body: Any) -> list[Any]:
        """The events of a stream, without the last one."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def idle(self, seconds: float = 5.0) -> bool:
        """Waits until the engine has nothing to do, and returns whether it has come to that."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stats = self.served.engine.stats()
            if stats.running == stats.waiting == self.served.in_flight == 0:
                return True
            time.sleep(0.01)
        return False


@contextlib.contextmanager
def running(
    device: Device | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    keys: Sequence[str] = (),
    http: Http | None = None,
    reload: Any = None,
    **engine: Any,
) -> Iterator[Running]:
    """A server on a port of its own, in a thread."""
    device = device or ScriptedDevice()
    words: Tokenizer = ByteTokenizer.Config().build() if tokenizer is None else tokenizer
    with Engine.Config(**engine).build(device=device) as built:
        served = Served(built, words, name="scripted", http=http, reload=reload)
        opened = open_socket("127.0.0.1", 0, has_keys=bool(keys))
        config = uvicorn.Config(
            build_app(served, keys), log_config=None, lifespan="off", access_log=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[opened])), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        found = Running(address_of(opened), served, device)
        try:
            yield found
        finally:
            found.client.close()
            server.should_exit = True
            thread.join(10)
            opened.close()
