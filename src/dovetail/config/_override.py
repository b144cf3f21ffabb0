# SPDX-License-Identifier: Apache-2.0
"""Overrides: `path=value` from a command line, read by the type of the field.

`model.dim=8`, `model.dropout=none`, `data.sizes=[1, 2]`, `model.activation=jax.nn.gelu`, `optimizer.kind=ADAM`.
"""

import ast
import importlib.util
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

from ._base import ConfigBase, fields_of
from ._errors import ConfigError, did_you_mean
from ._importing import import_object
from ._traverse import get_in, join, split
from ._types import is_enum, name_of, node_types, options_of
from ._values import FrozenDict, FrozenList, bare_name, kind

_C = TypeVar("_C", bound=ConfigBase)
_FAIL = object()
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_BRACKETS = {list: "[]", Sequence: "[]", tuple: "()", dict: "{}", set: "{}", frozenset: "{}"}


def override(cfg: _C, assignments: Iterable[str]) -> _C:
    """Returns `cfg` with `path=value` texts applied in order."""
    for assignment in assignments:
        path, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not path:
            raise ConfigError(f"{assignment!r} is not an override. Write path=value, as in model.dim=8.")
        hint = _hint_at(cfg, split(cfg, path), path)
        try:
            value = _read(text, hint)
        except ConfigError as e:
            raise ConfigError(f"{path}: {e}") from e
        if value is _FAIL:
            raise ConfigError(f"{path}: expected {name_of(hint)}, found {text!r}.{_advice(text, hint, path)}")
        cfg = cfg.set_in(path, value)
    return cfg


def _hint_at(cfg: ConfigBase, keys: list[Any], path: str) -> Any:
    """Returns the annotation that a value at this place has to fit."""
    *before, last = keys
    parent_path = ""
    for key in before:
        parent_path = join(parent_path, key)
    parent: Any = get_in(cfg, parent_path)
    if kind(parent) != "dict":
        get_in(cfg, path)  # Raises if there is no such place, naming the nearest one.
    if isinstance(parent, ConfigBase):
        return fields_of(parent)[last]
    for option in options_of(_hint_at(cfg, before, parent_path)):
        args = typing.get_args(option)
        if args:
            fixed = kind(parent) == "tuple" and Ellipsis not in args
            return args[last] if fixed else args[1] if kind(parent) == "dict" else args[0]
    return Any


def _read(text: str, hint: Any) -> Any:
    """Returns the value that `text` means for `hint`, or `_FAIL`. Of a union, str is tried last."""
    options = sorted(options_of(hint), key=lambda option: (option is str, option is float, option is Any))
    if len(options) > 1:
        return next((value for option in options if (value := _read(text, option)) is not _FAIL), _FAIL)
    hint = options[0]
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint is None or hint is bool:
        word = _WORDS.get(text.lower(), _FAIL)
        return word if (word is None) == (hint is None) else _FAIL
    if hint is int or hint is float:
        try:
            return hint(text)
        except ValueError:
            return _FAIL
    if hint is str:
        quoted = _literal(text)
        return quoted if isinstance(quoted, str) else text
    if origin is Literal:
        return next((option for option in args if text in (str(option), repr(option))), _FAIL)
    if is_enum(hint):
        return {str(m.value): m for m in hint}.get(text) or hint.__members__.get(text.rpartition(".")[2], _FAIL)
    if origin in _BRACKETS:
        return _container(text, origin, args)
    if hint is Any or hint is object:
        word = _WORDS.get(text.lower(), _FAIL)
        literal = _literal(text) if word is _FAIL else word
        return text if literal is _FAIL else literal
    return _FAIL if node_types(hint) else _imported(text)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _FAIL


def _imported(text: str) -> Any:
    """Returns what a path `package.module.name` or `module:name` names."""
    module, _, name = text.partition(":") if ":" in text else text.rpartition(".")
    while ":" not in text and module and not _is_module(module):
        module, _, head = module.rpartition(".")
        name = f"{head}.{name}"
    return import_object(f"{module}:{name}") if module and name else _FAIL


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _container(text: str, origin: Any, args: tuple[Any, ...]) -> Any:
    opening, closing = _BRACKETS[origin]
    if not (text.startswith(opening) and text.endswith(closing)):
        return _FAIL
    items = _split(text[1:-1])
    if origin is dict:
        pairs = [tuple(part.strip() for part in item.partition(":")[::2]) for item in items]
        key, value = args or (Any, Any)
        read = [(_read(k, key), _read(v, value)) for k, v in pairs]
        return _FAIL if any(_FAIL in pair for pair in read) else FrozenDict(read)
    hints = args if origin is tuple and Ellipsis not in args and args else (args or (Any,))[:1] * len(items)
    values = [_read(item, hint) for item, hint in zip(items, hints, strict=False)]
    if len(items) != len(hints) or _FAIL in values:
        return _FAIL
    made: Any = FrozenList if origin in (list, Sequence) else origin
    return made(values)


def _split(text: str) -> list[str]:
    """Splits at the commas that are not inside brackets or quotes."""
    items, depth, quote = [""], 0, ""
    for char in text:
        if char == "," and not depth and not quote:
            items.append("")
            continue
        if char in "'\"":
            quote = "" if char == quote else quote or char
        elif not quote:
            depth += (char in "([{") - (char in ")]}")
        items[-1] += char
    return [item.strip() for item in items if item.strip()]


def _advice(text: str, hint: Any, path: str) -> str:
    for option in options_of(hint):
        origin = typing.get_origin(option) or option
        if origin is Literal or is_enum(option):
            return did_you_mean(text, map(str, typing.get_args(option) or option.__members__))
        if origin in _BRACKETS:
            return f" Write it in {_BRACKETS[origin]}."
        for cls in node_types(option):
            field = next(iter(fields_of(cls)), "field")
            return f"\n  {bare_name(cls)} cannot be written in one value: set its fields, as in {path}.{field}=..."
    return ""
