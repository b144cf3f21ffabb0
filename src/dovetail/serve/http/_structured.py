# SPDX-License-Identifier: Apache-2.0
"""Texts of a given form: OpenAI's `response_format`, and vLLM's `structured_outputs` and `guided_...`, as grammars."""

import json
from collections.abc import Callable
from typing import Any

from dovetail.config import ConfigError

from .._request import Grammar
from ._errors import invalid
from ._fields import Fields, is_text
from ._served import Served

_CHOICES = "a list of strings"
_SCHEMA = "a JSON schema, which is an object"


async def grammar_of(served: Served, fields: Fields) -> Grammar | None:
    """Returns the grammar that a request asks for, or None."""
    found = [*_response_format(fields), *_structured(fields), *_guided(fields)]
    if not found:
        return None
    if len(found) > 1:
        both = " and ".join(place for place, _, _ in found[:2])
        raise invalid(f"{both} both say what the text must be. Use one of them.", found[1][0])
    ((place, kind, value),) = found

    def made() -> Grammar:
        compiler = served.grammars()
        makers: dict[str, Callable[[], Grammar]] = {
            "json": lambda: compiler.json_schema(value, field=place),
            "object": lambda: compiler.json_object(field=place),
            "regex": lambda: compiler.regex(value, field=place),
            "choice": lambda: compiler.choice(value, field=place),
        }
        return makers[kind]()

    try:
        return await served.in_thread(made)
    except ConfigError as e:
        raise invalid(f"{place} is not supported: {e}", place, "unsupported_parameter") from None


_Found = tuple[str, str, Any]  # Where it was found, the kind of grammar, and what it is made of.


def _response_format(fields: Fields) -> list[_Found]:
    inner = fields.inside("response_format")
    kind = inner.text("type")
    if "response_format" not in fields or kind == "text":
        return []
    if kind == "json_object":
        return [("response_format", "object", None)]
    if kind != "json_schema":
        raise inner.wrong("type", '"text", "json_object" or "json_schema"')
    described = inner.inside("json_schema")
    schema = described.raw("schema")
    if not isinstance(schema, dict):
        raise described.wrong("schema", _SCHEMA)
    return [("response_format", "json", schema)]


def _structured(fields: Fields) -> list[_Found]:
    inner = fields.inside("structured_outputs")
    inner.refuse("grammar", "use json, regex or choice.")
    inner.refuse("structural_tag", "use json, regex or choice.")
    found = _of_kinds(inner, "structured_outputs", "")
    if inner.boolean("json_object"):
        found.append(("structured_outputs", "object", None))
    if "structured_outputs" in fields and not found:
        raise fields.wrong("structured_outputs", "one of json, json_object, regex and choice in it")
    return found


def _guided(fields: Fields) -> list[_Found]:
    return _of_kinds(fields, None, "guided_")


def _of_kinds(fields: Fields, place: str | None, prefix: str) -> list[_Found]:
    """Returns what fields say of a text: `json`, `regex` or `choice`, after a prefix."""
    found: list[_Found] = []
    if (name := f"{prefix}json") in fields:
        found.append((place or name, "json", _schema(fields, name)))
    if (name := f"{prefix}regex") in fields:
        found.append((place or name, "regex", fields.text(name)))
    if (name := f"{prefix}choice") in fields:
        choices = fields.raw(name)
        if not isinstance(choices, list) or not choices or not all(map(is_text, choices)):
            raise fields.wrong(name, _CHOICES)
        found.append((place or name, "choice", choices))
    return found


def _schema(fields: Fields, name: str) -> dict[str, Any]:
    """Returns a schema, which may be written as JSON in a string."""
    value = fields.raw(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise fields.wrong(name, _SCHEMA) from None
    if not isinstance(value, dict):
        raise fields.wrong(name, _SCHEMA)
    return value
