# SPDX-License-Identifier: Apache-2.0
"""`Served`: the model that a server answers with, and the limits under which it does."""

import asyncio
import functools
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dovetail.config import ConfigBase, ConfigError
from dovetail.data import ChatTemplate, Tokenizer

from .._engine import Engine
from .._grammar import GrammarCompiler
from .._serving import Serving
from .._text import token_text
from ._errors import ApiError, invalid
from ._metrics import Metrics

_T = TypeVar("_T")


_AHEAD = 2  # Processes for chat templates that wait to be needed.


class Http(ConfigBase):
    """The limits of a server."""

    name: str | None = None  # Of the model; None: that of the directory it is from.
    max_bytes: int = 8 * 2**20  # Of the body of a request.
    max_requests: int = 2048  # HTTP requests at once, whatever they wait for.
    max_choices: int = 128  # Answers to one HTTP request, to all of its prompts.
    seconds: float = 600.0  # For a request, all in all.
    read_seconds: float = 30.0  # For the body of a request to arrive.
    write_seconds: float = 30.0  # For a client to take what it is sent, a part of a stream at a time.
    drain_seconds: float = 60.0  # For requests to finish, when the server ends.

    def check(self) -> None:
        """Raises if a value makes no sense."""
        for name in ("max_bytes", "max_requests", "max_choices", "seconds", "read_seconds", "write_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"http.{name} is {getattr(self, name)}, expected more than 0.")
        if self.drain_seconds < 0:
            raise ConfigError(f"http.drain_seconds is {self.drain_seconds}, expected 0 or more.")
        if self.name is not None and (not self.name or not self.name.isprintable()):
            raise ConfigError(f"http.name is {self.name!r}, expected a name that can be printed.")


class Serve(ConfigBase):
    """How a model is served."""

    serving: Serving = Serving()
    engine: Engine.Config = Engine.Config()
    http: Http = Http()


class Served:
    """A model, as all endpoints see it.

    Args:
        reload: loads the newest parameters into the engine, and returns the step they are of; None: it cannot.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        name: str,
        http: Http | None = None,
        reload: Callable[[], int] | None = None,
    ) -> None:
        self.engine, self.tokenizer, self.name = engine, tokenizer, name
        self.http, self.reload = http or Http(), reload
        self.http.check()
        self.created = int(time.time())
        self.max_length, self.max_logprobs = engine.max_length, engine.shape.max_logprobs
        self.stop_tokens = _stop_tokens(tokenizer)
        self.metrics = Metrics(name, engine.stats)
        self.is_draining = False
        self.in_flight = 0  # HTTP requests that are being answered.
        self.reloading = asyncio.Lock()
        self._threads = asyncio.Semaphore(4)  # That make prompts and grammars, at once.
        self.token_text = functools.cache(functools.partial(token_text, tokenizer))
        self._grammars: GrammarCompiler | None = None
        self._lock = threading.Lock()
        try:
            self._template, self._why = ChatTemplate(tokenizer.files(), ahead=_AHEAD), ""
        except ConfigError as e:
            self._template, self._why = None, str(e)

    def close(self) -> None:
        """Ends what was started for requests to come."""
        if self._template is not None:
            self._template.close()

    @property
    def has_chat(self) -> bool:
        return self._template is not None

    @property
    def template(self) -> ChatTemplate:
        """How a chat is written for the model."""
        if self._template is None:
            why = self._why.partition("\n")[0]
            raise invalid(f"This model cannot chat: {why} Use /v1/completions.", "messages", "no_chat_template")
        return self._template

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Returns what takes a while, of which few are done at once: a thread goes on if nobody waits any more."""
        await self._threads.acquire()
        task = asyncio.ensure_future(asyncio.to_thread(work))
        task.add_done_callback(lambda task: (self._threads.release(), task.cancelled() or task.exception()))
        return await asyncio.shield(task)

    def grammars(self) -> GrammarCompiler:
        """Returns what makes grammars, which takes a while the first time. Threads may share it."""
        with self._lock:
            if self._grammars is None:
                size, ends = self.engine.shape.vocab_size, sorted(self.stop_tokens)
                self._grammars = GrammarCompiler(self.tokenizer, vocab_size=size, end_tokens=ends)
            return self._grammars

    def check_model(self, name: str | None) -> None:
        """Raises if a request names another model. One that names none means this one."""
        if name is not None and name != self.name:
            message = f"There is no model {name!r:.200}. This server has {self.name!r}."
            raise ApiError(404, message, param="model", code="model_not_found")


def _stop_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Returns what ends a text: the tokenizer's own token, and those that the model's generation_config.json has."""
    found = {tokenizer.eos_id} if tokenizer.eos_id is not None else set[int]()
    ends = _generation_config(tokenizer.files()).get("eos_token_id")
    more = ends if isinstance(ends, list) else [ends]
    return frozenset(found | {each for each in more if type(each) is int and 0 <= each < tokenizer.vocab_size})


def _generation_config(files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        found = json.loads(files.get("generation_config.json", b"{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
