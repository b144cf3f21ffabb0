# SPDX-License-Identifier: Apache-2.0
"""The fields that completions and chats share: how tokens are drawn, what ends a text, how many choices there are."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

from .._request import Draw, Grammar, Request, RequestError
from ._answers import Asked
from ._errors import invalid
from ._fields import Fields, is_integer, is_text
from ._served import Served

_DRAW_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_MAX_BIAS = 100
_MAX_STOPS = 64
_MAX_TEXT = 1024  # Characters of a stop string.

# What would change the answer, and is not done. A field that is not known, or changes nothing, is ignored.
_NOT_DONE: dict[str, tuple[str, tuple[Any, ...]]] = {
    "allowed_token_ids": ("use structured_outputs, or logit_bias.", ([],)),
    "bad_words": ("use logit_bias.", ([],)),
    "guided_grammar": ("use guided_json, guided_regex or guided_choice.", ()),
    "length_penalty": ("there is no beam search.", (1, 1.0)),
    "logits_processors": ("the server runs no code of a request.", ([],)),
    "min_tokens": ("use ignore_eos with max_tokens.", (0,)),
    "prompt_logprobs": ("use echo with logprobs, of /v1/completions.", (0,)),
    "skip_special_tokens": ("special tokens are never part of the text.", (True,)),
    "truncate_prompt_tokens": ("shorten the prompt before it is sent; /tokenize counts its tokens.", (-1,)),
    "use_beam_search": ("there is no beam search.", (False,)),
}


@dataclasses.dataclass(frozen=True)
class Common:
    """What completions and chats both ask for."""

    draw: Draw
    n: int
    stop: tuple[str, ...]
    stop_tokens: frozenset[int]
    include_stop: bool
    priority: int
    salt: str
    stream: bool
    include_usage: bool
    as_ids: bool  # Tokens are named by their numbers, where log-probabilities are reported.

    def asked(
        self,
        tokens: Sequence[int],
        *,
        prompt: int = 0,
        count: int,
        max_tokens: int,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
        grammar: Grammar | None = None,
    ) -> list[Asked]:
        """Returns the choices of a prompt. Each has random numbers, and a grammar, of its own."""
        request = Request(
            tokens=tuple(tokens),
            max_tokens=max_tokens,
            draw=self.draw,
            stop_tokens=self.stop_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            priority=self.priority,
            salt=self.salt,
        )
        return [
            Asked(
                prompt,
                dataclasses.replace(
                    request,
                    choice=choice,
                    grammar=None if grammar is None else grammar.copy(),
                    prompt_logprobs=prompt_logprobs if choice == 0 else None,  # The same for all.
                ),
                self.stop,
                self.include_stop,
            )
            for choice in range(count)
        ]


def read_common(fields: Fields, served: Served) -> Common:
    """Returns what completions and chats share, of a request."""
    for name, (why, neutral) in _NOT_DONE.items():
        fields.refuse(name, why, unless=neutral)
    options, stream = fields.inside("stream_options"), fields.boolean("stream")
    if "stream_options" in fields and not stream:
        raise invalid("stream_options is only for a stream. Set stream to true.", "stream_options")
    ends = frozenset() if fields.boolean("ignore_eos") else served.stop_tokens
    extra = fields.one_or_more("stop_token_ids", is_integer, "a list of token ids")
    return Common(
        draw=_draw(fields, served),
        n=fields.integer("n", 1, least=1, most=served.http.max_choices),
        stop=_stop(fields),
        stop_tokens=ends | frozenset(extra),
        include_stop=fields.boolean("include_stop_str_in_output"),
        priority=fields.integer("priority", 0, least=-(2**31), most=2**31 - 1),
        salt=fields.text("cache_salt", ""),
        stream=stream,
        include_usage=options.boolean("include_usage"),
        as_ids=fields.boolean("return_tokens_as_token_ids"),
    )


def check_length(served: Served, prompt: int, max_tokens: int | None, field: str) -> int:
    """Returns how many tokens may be new after a prompt: as many as are asked for, or all that there is room for."""
    room = served.max_length - prompt
    wanted = max_tokens if max_tokens is not None else max(1, room)
    if prompt + wanted > served.max_length:
        asked = f" and {max_tokens} in {field}" if max_tokens else ""
        raise invalid(
            f"This model has room for {served.max_length} tokens, but there are {prompt} in the prompt{asked}. "
            f"Shorten the prompt{', or ask for fewer tokens' if max_tokens else ''}.",
            field if prompt < served.max_length and max_tokens else None,
            "context_length_exceeded",
        )
    return wanted


def check_model(fields: Fields, served: Served) -> None:
    """Raises if a request is for another model."""
    served.check_model(fields.text("model"))


def _draw(fields: Fields, served: Served) -> Draw:
    values = {name: fields.number(name, getattr(Draw(), name)) for name in _DRAW_NUMBERS}
    top_k = fields.integer("top_k", 0)
    seed = fields.integer("seed")
    draw = Draw(
        **values,
        top_k=max(top_k, 0) if top_k >= -1 else top_k,  # -1: all, as in vLLM.
        logit_bias=_bias(fields, served),
        seed=(int.from_bytes(os.urandom(4)) if seed is None else seed) % 2**32,
    )
    try:
        draw.check()
    except RequestError as e:
        raise invalid(str(e), e.field) from None
    return draw


def _bias(fields: Fields, served: Served) -> dict[int, float]:
    size, most = served.tokenizer.vocab_size, served.engine.shape.max_biased
    each = f"token ids below {size}, each with a number from -{_MAX_BIAS} to {_MAX_BIAS}"
    expected = f"an object of at most {most} {each}"
    value = fields.raw("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > most:
        raise fields.wrong("logit_bias", expected)
    found: dict[int, float] = {}
    for key, bias in value.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        is_id = key.isascii() and key.isdecimal() and len(key) < 12 and int(key) < size
        if not is_id or not is_number or not math.isfinite(bias) or abs(bias) > _MAX_BIAS:
            raise invalid(f"logit_bias has {key!r:.30}: {bias!r:.30}, expected {expected}.", "logit_bias")
        found[int(key)] = float(bias)
    return found


def _stop(fields: Fields) -> tuple[str, ...]:
    expected = f"a string, or a list of at most {_MAX_STOPS}, each of 1 to {_MAX_TEXT} characters"
    found = fields.one_or_more("stop", is_text, expected)
    if len(found) > _MAX_STOPS or not all(0 < len(each) <= _MAX_TEXT for each in found):
        raise fields.wrong("stop", expected)
    return tuple(found)
