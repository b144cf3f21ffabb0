# SPDX-License-Identifier: Apache-2.0
"""`Document`: what a source gives, as text or token ids; parts of it may have weights, and several may be a group."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dovetail.config import did_you_mean

from ._errors import DataError

FieldNames = str | tuple[str, ...]  # Where a document is in a record; several: the sequences of a group.


class Span(NamedTuple):
    """A part of a document, which is tokenised apart, and how much its tokens count as targets."""

    content: str | np.ndarray
    weight: float = 1.0


Content = str | np.ndarray | list[Span]


class Document(NamedTuple):
    """What a source gives: text, or token ids as they are, or parts of either with weights.

    A document too long to be read at once comes in several parts; only the first `starts` and only the last `ends`.
    A group, such as a better answer and a worse one, has its other sequences in `others`.
    """

    content: Content
    starts: bool = True
    ends: bool = True
    others: tuple[Content, ...] = ()

    @property
    def sequences(self) -> tuple[Content, ...]:
        """The document; of a group, all that belong together."""
        return self.content, *self.others


def group_size(field: FieldNames) -> int:
    """Returns how many sequences a document has that is read from these fields."""
    return 1 if isinstance(field, str) else len(field)


def names_of(field: FieldNames, prompt: str | None) -> list[str]:
    """Returns the names of all fields that are read."""
    return [*([prompt] if prompt is not None else []), *((field,) if isinstance(field, str) else field)]


def problem_of(field: FieldNames, prompt: str | None) -> str | None:
    """Returns what is wrong with names of fields, if something is."""
    names = names_of(field, prompt)
    if isinstance(field, tuple) and len(field) < 2:
        return f"is {field}. Use one name, or two or more whose texts belong together."
    if twice := next((name for name in names if names.count(name) > 1), None):
        return f"names {twice!r} twice. Give each field once."
    return None


def document_of_record(
    record: Any, field: FieldNames, prompt: str | None, place: Callable[[], str], kind: str = "field"
) -> Document:
    """Returns the document in a record; `place()` says where the record is, and `kind` what it has: fields, columns."""
    if not isinstance(record, Mapping):
        raise DataError(f"{place()}: expected a JSON object, found {record!r:.60} ({type(record).__name__}).")

    def content(name: str) -> Content:
        if name not in record:
            hint = did_you_mean(name, record) or f" It has: {', '.join(record) or 'nothing'}."
            raise DataError(f"{place()}: the record has no {kind} {name!r}.{hint}")
        found = record[name]
        return found if isinstance(found, str) else checked_content(found, f"{kind} {name!r}", place())

    before = None if prompt is None else _without_weight(content(prompt), f"{place()}: {kind} {prompt!r}")
    first, *others = (_after(before, content(name)) for name in names_of(field, None))
    return Document(first, others=tuple(others))


def _without_weight(prompt: Content, place: str) -> Span:
    if isinstance(prompt, list):
        raise DataError(f"{place} has parts. A prompt is a text, or a list of token ids: none of it is a target.")
    return Span(prompt, 0.0)


def _after(prompt: Span | None, content: Content) -> Content:
    if prompt is None:
        return content
    return [prompt, *content] if isinstance(content, list) else [prompt, Span(content)]


def checked_content(value: Any, what: str, place: str) -> Content:
    """Returns `value` if it can be the content of a document: text, a list of token ids, or of parts with weights."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and isinstance(value[0], dict) and all(isinstance(p, dict) for p in value):
        return [_checked_span(part, f"{place}: part {n} of {what}") for n, part in enumerate(value)]
    if isinstance(value, list | np.ndarray):
        try:
            ids = np.asarray(value if len(value) else np.zeros(0, np.int64))
        except ValueError:  # Lists of different lengths.
            ids = np.zeros(0)
        if ids.ndim == 1 and ids.dtype.kind in "iu":
            return ids
    found = "null" if value is None else f"{value!r:.60} ({type(value).__name__})"
    raise DataError(f"{place}: {what} is {found}. Expected text, or a list of token ids.")


def _checked_span(part: dict[str, Any], what: str) -> Span:
    if unknown := [name for name in part if name not in ("text", "weight")]:
        hint = did_you_mean(unknown[0], ("text", "weight")) or " It may have: text, weight."
        raise DataError(f"{what} has a field {unknown[0]!r}.{hint}")
    weight = part.get("weight")
    weight = 1.0 if weight is None else weight
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 <= weight < math.inf:
        raise DataError(f"{what} has the weight {weight!r}. Expected a number, 0 or more.")
    if "text" not in part:
        raise DataError(f"{what} has no field 'text'. Expected text, or a list of token ids, and perhaps a weight.")
    content = checked_content(part["text"], "its text", what)
    if isinstance(content, list):
        raise DataError(f"{what} has parts of its own. Expected text, or a list of token ids.")
    return Span(content, float(weight))
