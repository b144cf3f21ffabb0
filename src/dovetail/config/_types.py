# SPDX-License-Identifier: Apache-2.0
"""Run-time types: does a frozen value fit an annotation, and how is an annotation written in an error?"""

import collections.abc
import enum
import types
import typing
from typing import Annotated, Any, Final, Literal, NewType, TypeVar, Union, cast

from ._errors import ConfigError
from ._values import FrozenDict, FrozenList, Node, bare_name, join, kind, spell

_CALLABLE: tuple[Any, ...] = (typing.Callable, collections.abc.Callable)  # pyright: ignore[reportUnknownMemberType]
_UNION = (Union, types.UnionType)


class _Mismatch(Exception):
    def __init__(self, value: Any, hint: Any, where: str) -> None:
        self.value, self.hint, self.where = value, hint, where


def conform(value: Any, hint: Any, where: str) -> Any:
    """Returns frozen `value` as `hint` asks (an int in a float field becomes a float), or raises with the place."""
    if kind(value) == "marker":
        return value
    try:
        return _fit(value, hint, where)
    except _Mismatch as e:
        raise ConfigError(f"{e.where}: expected {name_of(e.hint)}, found {show(e.value)}.") from None


def _fit(value: Any, hint: Any, where: str) -> Any:
    hint = unwrap(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    fits = hint is Any
    if fits:
        return value
    if origin in _UNION:
        return _fit_union(value, args, hint, where)
    if origin is Literal:
        fits = any(type(value) is type(option) and value == option for option in args)
    elif hint is None:
        fits = value is None
    elif hint in _CALLABLE or origin in _CALLABLE:
        fits = callable(value)
    elif origin is type:
        wanted = [option for arg in args for option in options_of(arg)]
        fits = isinstance(value, type) and any(cls is Any or issubclass(value, cls) for cls in wanted)
    elif typing.is_typeddict(hint):
        fits = kind(value) == "dict"
    elif isinstance(origin, type):
        if isinstance(value, frozenset if origin is set else origin) and not isinstance(value, str):
            return _fit_items(value, args, hint, where)
    elif isinstance(hint, type):
        if hint is float and type(value) is int:
            try:
                return float(value)
            except OverflowError:
                raise _Mismatch(value, hint, where) from None
        protocol = getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", False)
        fits = protocol or (isinstance(value, hint) and not (isinstance(value, bool) and hint in (int, float)))
    else:
        fits = True  # An annotation that says nothing at run time.
    if not fits:
        raise _Mismatch(value, hint, where)
    return value


def _fit_union(value: Any, options: tuple[Any, ...], hint: Any, where: str) -> Any:
    if type(value) in options:  # An exact member is never converted to an earlier, wider one.
        return value
    inside: list[_Mismatch] = []
    for option in options:
        try:
            return _fit(value, option, where)
        except _Mismatch as e:
            if e.where != where:
                inside.append(e)
    raise inside[0] if len(inside) == 1 else _Mismatch(value, hint, where)


def _fit_items(value: Any, args: tuple[Any, ...], hint: Any, where: str) -> Any:
    """Fits what is in a container whose own type fits."""
    is_empty = isinstance(hint, types.GenericAlias) and not args  # tuple[()]
    fixed = typing.get_origin(hint) is tuple and (is_empty or (bool(args) and args[-1] is not Ellipsis))
    match kind(value):
        case _ if not args and not fixed:
            return value
        case "dict" if len(args) == 2:
            key, item = args
            return FrozenDict(
                (_fit(k, key, f"key of {where}"), _fit(v, item, join(where, k))) for k, v in value.items()
            )
        case "tuple" if fixed:
            if len(value) != len(args):
                raise _Mismatch(value, hint, where)
            return tuple(_fit(v, h, f"{where}[{i}]") for i, (v, h) in enumerate(zip(value, args, strict=True)))
        case "tuple" | "list" | "set":
            places = (f"item of {where}" if kind(value) == "set" else f"{where}[{i}]" for i in range(len(value)))
            items = [_fit(v, args[0], place) for v, place in zip(value, places, strict=True)]
            return {"tuple": tuple, "list": FrozenList, "set": frozenset}[kind(value)](items)
        case _:
            return value


def unwrap(hint: Any) -> Any:
    """Strips what does not matter at run time: Annotated, Final, NewType, type variables, type aliases."""
    while True:
        if typing.get_origin(hint) in (Annotated, Final):
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif isinstance(hint, TypeVar):
            hint = hint.__bound__ or Any
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return None if hint is type(None) else frozenset if hint is set else hint


def options_of(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the hint alone."""
    hint = unwrap(hint)
    if typing.get_origin(hint) in _UNION:
        return tuple(option for member in typing.get_args(hint) for option in options_of(member))
    return (hint,)


def is_plain(hint: Any) -> bool:
    """Whether `hint` is made of numbers, strings, None, literals and enums only: an annotation one can rely on."""
    hint = unwrap(hint)
    origin, args = typing.get_origin(hint), [arg for arg in typing.get_args(hint) if arg is not Ellipsis]
    if origin in (*_UNION, list, tuple, dict, collections.abc.Sequence):
        return all(map(is_plain, args))
    return origin is Literal or hint in (bool, int, float, str, None) or is_enum(hint)


def is_enum(hint: Any) -> bool:
    """Whether `hint` is an enum class."""
    return isinstance(hint, type) and issubclass(hint, enum.Enum)


def node_types(hint: Any) -> list[Any]:
    """Returns the config classes named anywhere in an annotation."""
    hint = unwrap(hint)
    origin: Any = typing.get_origin(hint) or hint
    found = [origin] if isinstance(origin, type) and issubclass(origin, Node) else []
    return found + [cls for arg in typing.get_args(hint) for cls in node_types(arg)]


def name_of(hint: Any) -> str:
    """Returns an annotation as one would write it, without module names."""
    hint = unwrap(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is Ellipsis:
        return "None" if hint is None else "..."
    if origin in _UNION:
        return " | ".join(map(name_of, args))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if isinstance(hint, list):
        return f"[{', '.join(map(name_of, cast(list[Any], hint)))}]"
    if is_enum(hint):
        return f"{bare_name(hint)} ({', '.join(hint.__members__)})"
    base = "Callable" if (origin or hint) in _CALLABLE else getattr(origin or hint, "__qualname__", str(hint))
    inside = ", ".join(map(name_of, args)) or ("()" if isinstance(hint, types.GenericAlias) else "")
    return base.rpartition("<locals>.")[2] + (f"[{inside}]" if inside else "")


def show(value: Any) -> str:
    """Returns a value and its type for an error text, shortened if long."""
    match kind(value):
        case "node":
            return f"{bare_name(type(value))} (a config)"
        case "import":
            found = "a class" if isinstance(value, type) else "a function"
        case "list" | "dict" | "tuple" | "set" | "partial" | "dtype":
            found = kind(value)
        case _:
            found = type(value).__name__
    text = spell(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({found})"
