# SPDX-License-Identifier: Apache-2.0
"""Overrides: `path=value` from a command line, read by the type of the field.

`model.dim=8`, `model.dropout=none`, `data.sizes=[1, 2]`, `model.activation=jax.nn.gelu`, `optimizer.kind=ADAM`. Where a
config stands, the name of a component puts another in its place: `learner.optimizer=Muon`.
"""

import ast
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from ._base import ConfigBase, fields_of
from ._by_name import choices, config_named, imported
from ._errors import ConfigError, did_you_mean
from ._function import FunctionConfig
from ._inherit import check_losses, inherit
from ._traverse import get_in, split
from ._types import is_enum, name_of, node_types, options_of
from ._values import FrozenDict, FrozenList, bare_name, join, kind, spell

_C = TypeVar("_C", bound=ConfigBase)
_FAIL = object()
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_BRACKETS = {list: "[]", Sequence: "[]", tuple: "()", dict: "{}", Mapping: "{}", frozenset: "{}"}


def override(cfg: _C, assignments: Iterable[str], *, note: Callable[[str], None] | None = None) -> _C:
    """Returns `cfg` with `path=value` texts applied in order.

    A component that takes the place of another inherits from it. What was set there and has no place is dropped, and
    `note` is called with a line that says so; without `note`, it is an error.
    """
    for assignment in assignments:
        path, text = split_override(assignment)
        hint = _hint_at(cfg, split(cfg, path), path)
        if assignment[len(path)] == "+":
            cfg = cfg.set_in(path, _added(get_in(cfg, path), text, hint, path))
            continue
        try:
            value = _read(text, hint)
        except ConfigError as e:
            raise ConfigError(f"{path}: {e}") from e
        if value is _FAIL:
            raise ConfigError(f"{path}: expected {name_of(hint)}, found {text!r}.{_advice(text, hint, path)}")
        if isinstance(value, ConfigBase):
            value = _swapped(value, cfg, path, note)
        cfg = cfg.set_in(path, value)
    return cfg


def split_override(assignment: str) -> tuple[str, str]:
    """Returns path and value of `path=value`, or `path+=value`; whether there is such a path is not known here."""
    path, *rest = _split(assignment, "=", most=1)
    path = path.removesuffix("+")
    if not rest or not path:
        raise ConfigError(f"{assignment!r} is not an override. Write path=value, as in model.dim=8.")
    return path, rest[0]


def _added(before: Any, text: str, hint: Any, path: str) -> Any:
    """Returns a list or tuple with one more entry, or several in brackets; what is there already is not added again."""
    if kind(before) not in ("list", "tuple"):
        raise ConfigError(f"{path}: += adds to a list or a tuple, and it is {spell(before)}. Write {path}=...")
    opens, closes = "()" if kind(before) == "tuple" else "[]"
    item = text.rstrip(",") if text[:1] == opens and text[-1:] == closes else f"{opens}{text},{closes}"
    try:
        value = _read(item, hint)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e
    if value is _FAIL:
        raise ConfigError(f"{path}: expected an entry of {name_of(hint)}, found {text!r}.{_advice(text, hint, path)}")
    return type(before)([*before, *(each for each in value if each not in before)])


def _swapped(new: ConfigBase, cfg: ConfigBase, path: str, note: Callable[[str], None] | None) -> ConfigBase:
    """Returns `new` with what it takes over from what stands at the path."""
    *before, last = split(cfg, path)
    parent = get_in(cfg, _joined(before))
    old = None if kind(parent) == "dict" and last not in parent else get_in(cfg, path)  # Or a new entry.
    if not isinstance(old, ConfigBase):
        return new
    made, losses = inherit(new, old, ())
    if losses and note is None:
        check_losses([(path, made, old, losses)])
    elif losses and note is not None:
        note(f"{path}: {_label(made)} in place of {_label(old)}, without {', '.join(map(str, losses))}")
    return made


def _label(cfg: ConfigBase) -> str:
    return spell(cfg) if isinstance(cfg, FunctionConfig) else bare_name(type(cfg)).removesuffix(".Config")


def _hint_at(cfg: ConfigBase, keys: list[Any], path: str) -> Any:
    """Returns the annotation that a value at this place has to fit."""
    *before, last = keys
    parent_path = _joined(before)
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


def _joined(keys: list[Any]) -> str:
    path = ""
    for key in keys:
        path = join(path, key)
    return path


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
        by_value = {str(member.value): member for member in hint}
        return {**by_value, **hint.__members__}.get(text.removeprefix(f"{hint.__name__}."), _FAIL)
    if origin in _BRACKETS:
        return _container(text, origin, args)
    if hint is Any or hint is object:
        word = _WORDS.get(text.lower(), _FAIL)
        literal = _literal(text) if word is _FAIL else word
        return text if literal is _FAIL else literal
    if getattr(hint, "__module__", "") == "numpy" and getattr(hint, "__name__", "") == "dtype":
        return _as_dtype(text, hint)
    if isinstance(origin, type) and issubclass(origin, ConfigBase):
        found = config_named(text, origin)
    else:
        found = None if node_types(hint) else imported(text)
    return _FAIL if found is None else found


def _as_dtype(text: str, dtype: Any) -> Any:
    try:
        return dtype(text)
    except TypeError:
        return _FAIL


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _FAIL


def _container(text: str, origin: Any, args: tuple[Any, ...]) -> Any:
    if origin is Sequence and text.startswith("("):
        origin, args = tuple, (*args, Ellipsis)
    if not _is_bracketed(text, _BRACKETS[origin]):
        return _FAIL
    items = [item for item in _split(text[1:-1], ",") if item]
    if origin in (dict, Mapping):
        key, value = args or (Any, Any)
        pairs = [_split(item, ":", most=1) for item in items]
        if any(len(pair) != 2 for pair in pairs):
            return _FAIL
        read = [(_read(k, key), _read(v, value)) for k, v in pairs]
        return _FAIL if any(_FAIL in pair for pair in read) else FrozenDict(read)
    hints = args if origin is tuple and Ellipsis not in args and args else (args or (Any,))[:1] * len(items)
    values = [_read(item, hint) for item, hint in zip(items, hints, strict=False)]
    if len(items) != len(hints) or _FAIL in values:
        return _FAIL
    made: Any = FrozenList if origin in (list, Sequence) else origin
    return made(values)


def _is_bracketed(text: str, brackets: str) -> bool:
    return len(text) > 1 and text[0] == brackets[0] and text[-1] == brackets[1]


def _split(text: str, separator: str, most: int = -1) -> list[str]:
    """Splits at the separators that are not inside brackets or quotes, `most` times at most."""
    items, depth, quote, escaped = [""], 0, "", False
    for char in text:
        if char == separator and not depth and not quote and most:
            items.append("")
            most -= 1
            continue
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
        items[-1] += char
    return [item.strip() for item in items]


def _advice(text: str, hint: Any, path: str) -> str:
    for option in options_of(hint):
        origin = typing.get_origin(option) or option
        if origin is Literal or is_enum(option):
            return did_you_mean(text, map(str, typing.get_args(option) or option.__members__))
        if origin in _BRACKETS and not _is_bracketed(text, _BRACKETS[origin]):
            return f" Write it in {_BRACKETS[origin]}."
        if origin is Callable:
            return " Write an import path, as in jax.nn.silu."
        for cls in node_types(option):
            return _known(text, cls, None in options_of(hint), "" if cls is not origin else path)
    return ""


def _known(text: str, slot: Any, is_optional: bool, path: str) -> str:
    """Says which names fit a slot, and how the fields of what is at the path are set."""
    if issubclass(slot, FunctionConfig):
        return " Write the import path of a function, as in dovetail.ops.gated."
    names = [*choices(slot), *["None"] * is_optional]
    takes = f"It takes one of: {', '.join(names)}." if names else "Nothing that fits is imported."
    fields = [f" Fields are set as in {path}.{name}=..." for name in fields_of(slot) if path]
    return f"{did_you_mean(text, names)}\n  {takes}{''.join(fields[:1])}"
