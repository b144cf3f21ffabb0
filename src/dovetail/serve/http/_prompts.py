# SPDX-License-Identifier: Apache-2.0
"""Prompts as OpenAI's interface has them: a text or several, or tokens."""

from typing import Any, NamedTuple

from ._errors import invalid
from ._fields import Fields, is_integer, is_text
from ._served import Served

_PROMPT = "a string, a list of strings, a list of token ids, or a list of lists of token ids"


class Prompt(NamedTuple):
    """One of them."""

    ids: list[int]
    text: str  # As it is echoed.


def read_prompts(fields: Fields, served: Served, name: str) -> list[Prompt]:
    """Returns the prompts in a field, as token ids; for a thread, as a tokenizer may take a while."""
    tokenizer, value = served.tokenizer, fields.raw(name)
    if value is None:
        raise invalid(f"{name} is missing.", name)
    is_one = is_text(value) or (isinstance(value, list) and bool(value) and all(map(is_integer, value)))
    values: Any = [value] if is_one else value
    if not isinstance(values, list) or not values or not all(_is_prompt(each) for each in values):
        raise fields.wrong(name, _PROMPT)
    if len(values) > served.http.max_choices:
        raise invalid(f"There are {len(values)} prompts, expected at most {served.http.max_choices}.", name)
    special, size, found = fields.boolean("add_special_tokens", True), tokenizer.vocab_size, list[Prompt]()
    for each in values:
        if is_text(each):
            ids = (tokenizer.encode_prompt(each) if special else tokenizer.encode(each)).tolist()
            found.append(Prompt(ids, each))
        else:
            if outside := [token for token in each if not 0 <= token < size]:
                raise invalid(f"{name} has the token {outside[0]}, outside the vocabulary of {size}.", name)
            found.append(Prompt(each, tokenizer.decode(each)))
        if not found[-1].ids:
            raise invalid(f"{name} is empty, expected at least one token.", name)
    return found


def _is_prompt(value: Any) -> bool:
    return is_text(value) or (isinstance(value, list) and all(map(is_integer, value)))
