# SPDX-License-Identifier: Apache-2.0
"""Writes YAML: mappings, lists, texts, numbers and booleans, as engines read them. Nothing here reads it.

A text is written plain only if no version of YAML could take it for something else; any other one is quoted. Texts of
several lines are blocks.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_OTHER = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}  # What a plain text may mean to some.


def to_yaml(value: Mapping[str, Any]) -> str:
    """Returns a document. Keys stay in their order.

    >>> print(to_yaml({"kind": "Job", "labels": {"on": "1.0"}, "codes": [1, 2]}), end="")
    kind: Job
    labels:
      "on": "1.0"
    codes:
    - 1
    - 2
    """
    return "\n".join(_mapping(value)) + "\n"


def documents(*values: Mapping[str, Any]) -> str:
    """Returns several documents, one after the other."""
    return "---\n".join(map(to_yaml, values))


def _mapping(value: Mapping[str, Any]) -> Iterator[str]:
    for key, each in value.items():
        name = _text(key)
        if isinstance(each, Mapping) and each:
            yield f"{name}:"
            yield from (f"  {line}" if line else line for line in _mapping(each))
        elif isinstance(each, Sequence) and not isinstance(each, str) and each:
            yield f"{name}:"
            yield from _list(each)
        elif isinstance(each, str) and _is_block(each):
            first, *rest = _block(each)
            yield f"{name}: {first}"
            yield from rest
        else:
            yield f"{name}: {_scalar(each)}"


def _list(value: Sequence[Any]) -> Iterator[str]:
    for each in value:
        if isinstance(each, Mapping) and each:
            first, *rest = _mapping(each)
            yield f"- {first}"
            yield from (f"  {line}" if line else line for line in rest)
        elif isinstance(each, Sequence) and not isinstance(each, str) and each:
            raise TypeError(f"lists in lists are not written: {each!r}")
        elif isinstance(each, str) and _is_block(each):
            first, *rest = _block(each)
            yield f"- {first}"
            yield from rest
        else:
            yield f"- {_scalar(each)}"


def _block(text: str) -> Iterator[str]:
    yield "|" if text.endswith("\n") else "|-"
    yield from (f"  {line}" if line else line for line in text.removesuffix("\n").split("\n"))


def _is_block(text: str) -> bool:
    """Whether a text has several lines, and nothing that a block would change."""
    lines = text.split("\n")
    plain = all(line.isascii() and line.isprintable() and line == line.rstrip() for line in lines)
    return len(lines) > 2 and plain and bool(lines[0]) and not text.startswith(" ") and not text.endswith("\n\n")


def _scalar(value: Any) -> str:
    match value:
        case bool() | None:
            return json.dumps(value)
        case int() | float():
            return json.dumps(value, allow_nan=False)
        case str():
            return _text(value)
        case Mapping():
            return "{}"
        case Sequence():
            return "[]"
        case _:
            raise TypeError(f"not written as YAML: {value!r}")


def _text(value: str) -> str:
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _OTHER
    return value if is_plain else f'"{"".join(map(_escaped, value))}"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isascii() and letter.isprintable():
        return letter
    if letter == "\n":
        return "\\n"
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
