# SPDX-License-Identifier: Apache-2.0
"""The messages and tools of a chat, as tokens: checked, and written by the template that comes with the model."""

import json
from collections.abc import Mapping
from typing import Any

from dovetail.config import ConfigError

from ._errors import invalid
from ._fields import Fields
from ._served import Served

_MESSAGE = "an object with a role and a content"


async def chat_prompt(served: Served, fields: Fields, *, generation_prompt: bool = True) -> list[int]:
    """Returns the tokens of the chat that a request has."""
    template, messages, tools = served.template, _messages(fields), _tools(fields)
    fields.refuse("continue_final_message", "the answer is a message of its own.", unless=(False,))
    fields.refuse("chat_template", "the server uses the one that comes with the model.")
    fields.refuse("documents", "write them into a message.", unless=([],))
    fields.refuse("functions", "use tools.", unless=([],))
    fields.refuse("function_call", "use tools.", unless=("none", "auto"))
    options = fields.raw("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise fields.wrong("chat_template_kwargs", "an object")
    generation_prompt = fields.boolean("add_generation_prompt", generation_prompt)

    def written() -> list[int]:
        text = template.render(messages, tools=tools, options=options, add_generation_prompt=generation_prompt)
        return served.tokenizer.encode_with_special(text).tolist()

    try:
        ids = await served.in_thread(written)
    except ConfigError as e:
        raise invalid(str(e), "messages", "chat_template_error") from None
    if not ids:
        raise invalid("The chat template makes an empty prompt of these messages.", "messages")
    return ids


def _messages(fields: Fields) -> list[dict[str, Any]]:
    found = fields.raw("messages")
    if not isinstance(found, list) or not found:
        raise fields.wrong("messages", f"a list with at least one message, each {_MESSAGE}")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(found)]


def _message(message: Any, place: str) -> dict[str, Any]:
    """Returns a message as templates expect it: its content is text, and arguments of tools are objects."""
    if not isinstance(message, dict):
        raise Fields({place: message}).wrong(place, _MESSAGE)
    fields = Fields(message, f"{place}.")
    if not fields.text("role"):
        raise fields.wrong("role", "a string, as in user or assistant")
    fields.refuse("audio", "the model reads text.")
    fields.refuse("function_call", "use tool_calls.")
    calls = _calls(fields)
    content = fields.raw("content")
    if isinstance(content, list):
        content = "\n".join(_text_of(part, f"{place}.content[{i}]") for i, part in enumerate(content))
    elif not isinstance(content, str) and not (content is None and (calls or message["role"] == "assistant")):
        raise fields.wrong("content", "a string, or a list of parts that are text")
    return {**message, "content": content, **({"tool_calls": calls} if calls else {})}


def _text_of(part: Any, place: str) -> str:
    """Returns the text of a part of a message."""
    if isinstance(part, str):
        return part
    fields = Fields(part if isinstance(part, dict) else {}, f"{place}.")
    if fields.raw("type") not in ("text", "refusal"):
        shown = fields.raw("type") if isinstance(fields.raw("type"), str) else "no type"
        raise invalid(f"{place} is of type {shown!r:.40}, but this model reads text alone.", place)
    text = fields.text(fields.raw("type"))
    if text is None:
        raise fields.wrong("text", "a string")
    return text


def _calls(fields: Fields) -> list[Any]:
    """Returns the calls of tools that a message has; clients have their arguments as text, templates as objects."""
    calls = fields.raw("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise fields.wrong("tool_calls", "a list of objects")
    return [_call(call) for call in calls]


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):  # What a model wrote need not be JSON.
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}


def _tools(fields: Fields) -> list[dict[str, Any]] | None:
    """Returns the tools that the template is given. Which of them the model calls is in its text."""
    tools, choice = fields.raw("tools"), fields.raw("tool_choice")
    if tools is not None and (not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools)):
        raise fields.wrong("tools", "a list of objects")
    if choice not in (None, "none", "auto"):
        why = "the model decides whether it calls a tool. Use auto, or none."
        raise invalid(f"tool_choice is not supported: {why}", "tool_choice", "unsupported_parameter")
    return tools if tools and choice != "none" else None
