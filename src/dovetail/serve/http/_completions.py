# SPDX-License-Identifier: Apache-2.0
"""`POST /v1/completions`: prompts are continued."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from starlette.responses import Response

from .._request import Token
from ._answers import Answers, Part, collected
from ._errors import invalid
from ._fields import Fields
from ._logprobs import LogprobWriter, joined
from ._prompts import Prompt, read_prompts
from ._respond import EventStream, json_response
from ._sampling import Common, check_length, check_model, read_common
from ._served import Served
from ._structured import grammar_of


class _Asked(NamedTuple):
    """What a request asks for."""

    common: Common
    prompts: list[Prompt]
    best_of: int
    echo: bool
    logprobs: int | None


async def completions(served: Served, fields: Fields) -> Response | EventStream:
    """Answers a request."""
    check_model(fields, served)
    fields.refuse("suffix", "the model continues a prompt, it does not fill one in.", unless=("",))
    common, echo = read_common(fields, served), fields.boolean("echo")
    logprobs = fields.integer("logprobs", least=0, most=served.max_logprobs)
    best_of = fields.integer("best_of", common.n, least=1, most=served.http.max_choices)
    if best_of < common.n:
        raise invalid(f"best_of is {best_of}, expected at least n, which is {common.n}.", "best_of")
    if common.stream and best_of > common.n:
        raise invalid("best_of cannot be streamed: which choice is best is known at the end.", "best_of")
    max_tokens = fields.integer("max_tokens", 16, least=0)
    if not max_tokens and not echo:
        raise invalid("max_tokens is 0, expected at least 1, or echo.", "max_tokens")
    prompts = await asyncio.to_thread(read_prompts, fields, served, "prompt")
    if len(prompts) * best_of > served.http.max_choices:
        found = f"{len(prompts)} prompts with {best_of} choices each"
        raise invalid(f"There are {found}, expected at most {served.http.max_choices} choices in all.", "prompt")
    for prompt in prompts:
        check_length(served, len(prompt.ids), max_tokens, "max_tokens")
    grammar = await grammar_of(served, fields)
    asked = _Asked(common, prompts, best_of, echo, logprobs)
    choices = [
        choice
        for index, prompt in enumerate(prompts)
        for choice in common.asked(
            prompt.ids,
            prompt=index,
            count=best_of,
            max_tokens=max_tokens,
            logprobs=0 if logprobs is None and best_of > common.n else logprobs,
            prompt_logprobs=logprobs if echo else None,
            grammar=grammar,
        )
    ]
    answers = Answers(served.engine, served.tokenizer, choices, metrics=served.metrics, seconds=served.http.seconds)
    if common.stream:
        return EventStream(_events(served, asked, answers), answers.close, served.http.write_seconds)
    return json_response(await _whole(served, asked, answers))


class _Choice:
    """One choice, as its parts come."""

    def __init__(self, served: Served, asked: _Asked, index: int) -> None:
        self._asked, self._prompt = asked, asked.prompts[index // asked.best_of]
        offset = 0 if asked.echo else len(self._prompt.text)
        self._writer = LogprobWriter(served.token_text, offset=offset, as_ids=asked.common.as_ids)
        self._is_first = True
        self.total, self.count = 0.0, 0  # Of log-probabilities of new tokens.

    def take(self, part: Part, prompt: Sequence[Token]) -> tuple[str, dict[str, Any] | None]:
        """Returns new text, and log-probabilities; the prompt comes first, if it is echoed."""
        self.total += sum(token.logprob or 0.0 for token in part.tokens)
        self.count += len(part.tokens)
        text, tokens = part.text, part.tokens
        if self._is_first and self._asked.echo:
            text, tokens = self._prompt.text + text, (*self._prompt_tokens(prompt), *tokens)
        self._is_first = False
        return text, None if self._asked.logprobs is None else self._writer.completion(tokens)

    def _prompt_tokens(self, prompt: Sequence[Token]) -> Sequence[Token]:
        """Returns all tokens of the prompt; the first one has no log-probability."""
        ids = self._prompt.ids
        return (Token(ids[0]), *prompt[-(len(ids) - 1) :]) if len(ids) > 1 else (Token(ids[0]),)

    @property
    def mean(self) -> float:
        return self.total / max(1, self.count)


class _Prompts:
    """Log-probabilities of prompts, which the first choice of each has. Parts of other choices wait for them."""

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._is_needed = asked.echo and asked.logprobs is not None
        self._known: dict[int, Sequence[Token]] = {}
        self._waiting: list[Part] = []

    def ready(self, part: Part) -> list[tuple[Part, Sequence[Token]]]:
        """Returns the parts that can be written now, with the tokens of their prompts."""
        if not self._is_needed:
            return [(part, ())]
        if part.index % self._asked.best_of == 0 and (part.prompt or part.tokens or part.finish):
            self._known.setdefault(part.index // self._asked.best_of, part.prompt)
        waiting, self._waiting = [*self._waiting, part], []
        found = list[tuple[Part, Sequence[Token]]]()
        for each in waiting:
            known = self._known.get(each.index // self._asked.best_of)
            if known is None:
                self._waiting.append(each)
            else:
                found.append((each, known))
        return found


async def _whole(served: Served, asked: _Asked, answers: Answers) -> dict[str, Any]:
    """Returns the answer to a request, when all of it is there."""
    count = len(asked.prompts) * asked.best_of
    choices, prompts = [_Choice(served, asked, index) for index in range(count)], _Prompts(asked)
    texts, logprobs, ends = [""] * count, [list[Any]() for _ in range(count)], [Part(0)] * count

    def take(part: Part) -> None:
        for each, prompt in prompts.ready(part):
            text, found = choices[each.index].take(each, prompt)
            texts[each.index] += text
            logprobs[each.index].append(found)
            ends[each.index] = each

    await collected(answers, take)
    best: list[int] = []
    for start in range(0, count, asked.best_of):
        ranked = sorted(range(start, start + asked.best_of), key=lambda index: -choices[index].mean)
        best += ranked[: asked.common.n] if asked.best_of > asked.common.n else sorted(ranked)
    found = [
        {
            "index": index,
            "text": texts[each],
            "logprobs": None if asked.logprobs is None else joined(logprobs[each]),
            "finish_reason": ends[each].finish,
            "stop_reason": ends[each].stopped,
        }
        for index, each in enumerate(best)
    ]
    return {**_head(served), "choices": found, "usage": answers.usage.body}


async def _events(served: Served, asked: _Asked, answers: Answers) -> AsyncIterator[dict[str, Any]]:
    """Yields the answer in parts."""
    head = _head(served) | ({"usage": None} if asked.common.include_usage else {})
    count = len(asked.prompts) * asked.best_of
    choices, prompts = [_Choice(served, asked, index) for index in range(count)], _Prompts(asked)
    async for part in answers.parts():
        for each, prompt in prompts.ready(part):
            text, logprobs = choices[each.index].take(each, prompt)
            if text or each.finish is not None or (logprobs and logprobs["tokens"]):
                choice = {"index": each.index, "text": text, "logprobs": logprobs, "finish_reason": each.finish}
                yield {**head, "choices": [choice | ({"stop_reason": each.stopped} if each.finish else {})]}
    if asked.common.include_usage:
        yield {**head, "choices": [], "usage": answers.usage.body}


def _head(served: Served) -> dict[str, Any]:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": None,
    }
