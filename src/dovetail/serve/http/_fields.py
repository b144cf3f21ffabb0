# SPDX-License-Identifier: Apache-2.0
"""`Fields`: the body of a request, of which each field is read once, as the type that it must have."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never, TypeGuard, TypeVar

from ._errors import ApiError, invalid

_T = TypeVar("_T")


class Fields:
    """The fields of a JSON object. What is `null` counts as not there, as in OpenAI's API.

    Args:
        place: in the request, of an object inside it: "stream_options.", say.
    """

    def __init__(self, values: Mapping[str, Any], place: str = "") -> None:
        self._values, self._place = values, place

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        """Returns a field as it is, or None."""
        return self._values.get(name)

    def wrong(self, name: str, expected: str) -> ApiError:
        """Returns the error of a field that is something else than it must be."""
        return invalid(f"{self._place}{name} is {_shown(self.raw(name))}, expected {expected}.", self._place + name)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def integer(self, name: str, default: _T = None, *, least: int | None = None, most: int | None = None) -> int | _T:
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():  # 1.0, as some languages write it.
            value = int(value)
        if not is_integer(value) or not _is_within(value, least, most):
            raise self.wrong(name, "a whole number" + _range(least, most))
        return value

    def number(self, name: str, default: float) -> float:
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number")
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf  # Whoever knows the limits refuses it.

    def text(self, name: str, default: _T = None) -> str | _T:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def inside(self, name: str) -> "Fields":
        """Returns the fields of an object in this one; without it, none."""
        value = self.raw(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value or {}, f"{self._place}{name}.")

    def one_or_more(
        self, name: str, is_item: Callable[[Any], bool], expected: str, *, default: Sequence[Any] = ()
    ) -> list[Any]:
        """Returns an item, or several of them, as a list."""
        value = self.raw(name)
        if value is None:
            return list(default)
        items = value if isinstance(value, list) else [value]
        if not all(is_item(item) for item in items):
            raise self.wrong(name, expected)
        return items

    def refuse(self, name: str, why: str, *, unless: Sequence[Any] = ()) -> None:
        """Raises if a field is there, and asks for what is not done."""
        value = self.raw(name)
        if value is not None and not any(type(value) is type(each) and value == each for each in unless):
            raise invalid(f"{self._place}{name} is not supported: {why}", self._place + name, "unsupported_parameter")


def parse(body: bytes) -> Fields:
    """Returns the fields of a request, from its body."""
    try:
        values = json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise invalid("The body is nested too deeply.", code="invalid_json") from None
    except ValueError as e:
        raise invalid(f"The body is not JSON: {e}.", code="invalid_json") from None
    if not isinstance(values, dict):
        raise invalid(f"The body is {_shown(values)}, expected an object.", code="invalid_json")
    if b"\\ud" in body.lower():
        _check_text(values)
    return Fields(values)


def is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str)


def _check_text(values: Any) -> None:
    """Raises where half a pair of surrogates is written out, which JSON can do: that is no text."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        found = f"\\u{ord(e.object[e.start]):04x}"
        raise invalid(f"The body has {found} in it, half a pair of surrogates, which is no character.") from None


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no number in JSON")


def _is_within(value: int, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _range(least: int | None, most: int | None) -> str:
    if least is None or most is None:
        return "" if least is None else f", at least {least}"
    return f" from {least} to {most}"


def _shown(value: Any) -> str:
    """Returns a value as in JSON, if it is short, and else what it is."""
    if value is None or isinstance(value, bool | int | float | str):
        text = json.dumps(value, ensure_ascii=False) if not _is_long(value) else "a very large number"
        return text if len(text) <= 60 else f"{text[:56]}..."
    return f"{'a' if value else 'an empty'} list" if isinstance(value, list) else "an object"


def _is_long(value: Any) -> bool:
    return is_integer(value) and value.bit_length() > 200
