# SPDX-License-Identifier: Apache-2.0
"""`POST /v1/chat/completions`: the next message of a chat."""

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from starlette.responses import Response

from ._answers import Answers, Part, collected
from ._errors import invalid
from ._fields import Fields
from ._logprobs import LogprobWriter, joined
from ._messages import chat_prompt
from ._respond import EventStream, json_response
from ._sampling import Common, check_length, check_model, read_common
from ._served import Served
from ._structured import grammar_of

_NOT_DONE: dict[str, tuple[str, tuple[Any, ...]]] = {
    "audio": ("the model writes text.", ()),
    "best_of": ("it is for /v1/completions; use n.", (1,)),
    "echo": ("it is for /v1/completions.", (False,)),
    "modalities": ("the model writes text.", (["text"], [])),
    "moderation": ("this server moderates nothing.", ()),
    "reasoning_effort": ("use chat_template_kwargs, if the chat template of the model has something like it.", ()),
    "verbosity": ("say in a message how long the answer should be.", ()),
    "web_search_options": ("this server searches nothing.", ()),
}


class _Asked(NamedTuple):
    """What a request asks for."""

    common: Common
    logprobs: int | None  # Alternatives to each token.


async def chat(served: Served, fields: Fields) -> Response | EventStream:
    """Answers a request."""
    check_model(fields, served)
    for name, (why, neutral) in _NOT_DONE.items():
        fields.refuse(name, why, unless=neutral)
    asked = _Asked(read_common(fields, served), _logprobs(fields, served))
    field = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    wanted = fields.integer(field, least=1)
    ids = await chat_prompt(served, fields)
    max_tokens = check_length(served, len(ids), wanted, field)
    grammar = await grammar_of(served, fields)
    choices = asked.common.asked(
        ids, count=asked.common.n, max_tokens=max_tokens, logprobs=asked.logprobs, grammar=grammar
    )
    answers = Answers(served.engine, served.tokenizer, choices, metrics=served.metrics, seconds=served.http.seconds)
    if asked.common.stream:
        return EventStream(_events(served, asked, answers), answers.close, served.http.write_seconds)
    return json_response(await _whole(served, asked, answers))


def _logprobs(fields: Fields, served: Served) -> int | None:
    top = fields.integer("top_logprobs", 0, least=0, most=served.max_logprobs)
    if fields.boolean("logprobs"):
        return top
    if top:
        raise invalid("top_logprobs is only for a request with logprobs. Set logprobs to true.", "top_logprobs")
    return None


class _Choice:
    """One choice, as its parts come."""

    def __init__(self, served: Served, asked: _Asked) -> None:
        self._top = asked.logprobs
        self._writer = LogprobWriter(served.token_text, as_ids=asked.common.as_ids)

    def logprobs(self, part: Part) -> dict[str, Any] | None:
        return None if self._top is None else self._writer.chat(part.tokens, self._top)


async def _whole(served: Served, asked: _Asked, answers: Answers) -> dict[str, Any]:
    """Returns the answer to a request, when all of it is there."""
    choices = [_Choice(served, asked) for _ in range(asked.common.n)]
    texts, ends = [""] * len(choices), [Part(0)] * len(choices)
    logprobs: list[list[Any]] = [[] for _ in choices]

    def take(part: Part) -> None:
        texts[part.index] += part.text
        logprobs[part.index].append(choices[part.index].logprobs(part))
        ends[part.index] = part

    await collected(answers, take)
    found = [
        {
            "index": index,
            "message": {"role": "assistant", "content": texts[index], "refusal": None},
            "logprobs": None if asked.logprobs is None else joined(logprobs[index]),
            "finish_reason": end.finish,
            "stop_reason": end.stopped,
        }
        for index, end in enumerate(ends)
    ]
    return {**_head(served, "chat.completion"), "choices": found, "usage": answers.usage.body}


async def _events(served: Served, asked: _Asked, answers: Answers) -> AsyncIterator[dict[str, Any]]:
    """Yields the answer in parts."""
    head = _head(served, "chat.completion.chunk") | ({"usage": None} if asked.common.include_usage else {})
    choices = [_Choice(served, asked) for _ in range(asked.common.n)]

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, **rest: Any) -> dict[str, Any]:
        return {
            **head,
            "choices": [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None, **rest}],
        }

    for index in range(len(choices)):
        yield chunk(index, {"role": "assistant", "content": ""})
    async for part in answers.parts():
        logprobs = choices[part.index].logprobs(part)
        if part.text or (logprobs and logprobs["content"]):
            yield chunk(part.index, {"content": part.text}, logprobs)
        if part.finish is not None:
            yield chunk(part.index, {}, finish_reason=part.finish, stop_reason=part.stopped)
    if asked.common.include_usage:
        yield {**head, "choices": [], "usage": answers.usage.body}


def _head(served: Served, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": None,
    }
