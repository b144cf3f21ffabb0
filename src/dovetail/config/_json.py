# SPDX-License-Identifier: Apache-2.0
"""Configs as JSON, without loss, and back, without trusting the file.

Numbers, strings, booleans, None, lists and dicts with plain string keys are themselves. Everything else is an object
with one `$` key: `{"$tuple": [...]}`, `{"$import": "jax.nn:silu"}`, `{"$config": "module:Class.Config", ...fields}`.
"""
# pyright: reportPrivateUsage=false
# Node's methods are private to this package, not to its file.

import contextlib
import enum
import functools
import importlib
import json
import math
import re
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

from ._errors import ConfigError
from ._harmless import FUNCTIONS, TYPES
from ._importing import import_object, public_path
from ._text import ROOT
from ._traverse import find, parts
from ._types import show
from ._values import DEFAULT, REQUIRED, FrozenDict, FrozenList, Node, freeze, join, kind, same, spell

_Allow = tuple[str, ...] | None
_FORMAT = 1
_MARKERS = {"REQUIRED": REQUIRED, "DEFAULT": DEFAULT}
_OURS = re.compile(r"dovetail\.[a-z]\w*:")  # Packages, which do nothing but define classes when they are imported.
_LONGEST = 308  # Digits of a whole number: what a float holds.


def to_json(cfg: Node, *, indent: int | None = 2) -> str:
    """Returns the whole tree as JSON text, from which `from_json` makes an equal one."""
    return json.dumps({"$format": _FORMAT, **encode(cfg)}, indent=indent, allow_nan=False, ensure_ascii=False)


def from_json(text: str, *, allow: Iterable[str] = ()) -> Any:
    """Returns the config written in `text`.

    A config file is data. What it refers to must be a config or enum of a package of dovetail, a function or type on a
    list of harmless ones, or anything public in the modules named in `allow`, or below them. Nothing else is imported,
    and nothing is called but the config classes.

    What is built from a file that was read without `allow` reaches no network, process or pickle, and no file but those
    that components whose purpose it is are told to use: sources, tokenizers, checkpointers, observers, the trainer.
    A model or a learner has no such components inside.

    A field that the file does not mention has its default, so files from before the field existed can be read.
    """
    if isinstance(allow, str):
        raise ConfigError(f"allow: expected a list of module names, found {allow!r} (str).")
    with _one_error():
        data: Any = freeze(_parsed(text), "file")
        if kind(data) != "dict" or "$config" not in data:
            raise ConfigError("not a config: expected an object with the key '$config', as to_json writes it.")
        if data.get("$format") != _FORMAT:
            found = data.get("$format")
            raise ConfigError(
                f"config format {found!r} cannot be read: this version of dovetail reads format {_FORMAT}."
            )
        body = FrozenDict((key, value) for key, value in data.items() if key != "$format")
        return _decode(body, "", tuple(allow))


@contextlib.contextmanager
def _one_error() -> Generator[None]:
    """Turns whatever a file that is no config leads to into one ConfigError."""
    try:
        yield
    except RecursionError as e:
        raise ConfigError("the file is nested too deeply to be a config.") from e
    except _Placed as e:
        raise ConfigError(str(e)) from e.__cause__
    except ConfigError:
        raise
    except ValueError as e:
        raise ConfigError(f"not a JSON file: {e}.") from e


def _parsed(text: str) -> Any:
    """Returns what is written in strict JSON: no key twice, no number that is none or that a float cannot hold."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
            raise ConfigError(f"not a config: the key {twice!r} stands twice in one object.")
        return found

    def refuse(number: str) -> Any:
        raise ConfigError(f"not a config: {number[:30]} is not a number that a file may hold.")

    def whole(digits: str) -> int:
        return int(digits) if len(digits) <= _LONGEST else refuse(f"{digits[:9]}... ({len(digits)} digits)")

    def real(number: str) -> float:
        return value if math.isfinite(value := float(number)) else refuse(number)

    data = json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_int=whole, parse_float=real)
    if "\\u" in text:
        json.dumps(data, ensure_ascii=False).encode()  # Half of a surrogate pair, which nothing could write again.
    return data


def modules_named(text: str) -> frozenset[str]:
    """Returns the modules that a file refers to and that `from_json` does so only if they are in `allow`."""
    found: set[str] = set()

    def walk(data: Any) -> None:
        for key, value in parts(data).items():
            if key in ("$config", "$enum", "$of", "$import") and isinstance(value, str):
                is_class = key in ("$config", "$enum")
                if value not in FUNCTIONS | TYPES and not (is_class and _OURS.match(value)):
                    found.add(value.partition(":")[0])
            else:
                walk(value)

    with _one_error():
        walk(freeze(_parsed(text), "file"))
    return frozenset(found)


def encode(value: Any) -> Any:
    """Returns a frozen value as JSON data; configs also tell which of their fields were set."""
    match kind(value):
        case "atom":
            return {"$float": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value
        case "list":
            return [encode(v) for v in value]
        case "tuple":
            return {"$tuple": [encode(v) for v in value]}
        case "set":
            return {"$set": [encode(v) for v in sorted(value, key=spell)]}
        case "dict" if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: encode(v) for k, v in value.items()}
        case "dict":
            return {"$dict": [[encode(k), encode(v)] for k, v in value.items()]}
        case "node":
            fields = {name: encode(v) for name, v in value._values().items()}
            return {**value._identity(), "$explicit": sorted(value._explicit), **fields}
        case "partial":
            args, keywords = FrozenList(value.args), FrozenDict(value.keywords)
            return {"$partial": encode(value.func), "args": encode(args), "keywords": encode(keywords)}
        case "enum":
            known = value.name in cast(Any, type(value)).__members__  # A combination of flags is no member.
            member = {"name": value.name} if known else {"value": value.value}
            return {"$enum": public_path(type(value)), **member}
        case "marker":
            return {"$marker": repr(value)}
        case "dtype":
            return {"$dtype": value.name}
        case _:
            return {"$import": public_path(value)}


def decode_trusted(data: Any) -> Any:
    """Returns what `encode` was given; for pickle, which trusts its input anyway."""
    return _decode(freeze(data, "pickle"), "", None)


def _decode(data: Any, path: str, allow: _Allow) -> Any:
    if kind(data) == "list":
        return FrozenList(_decode(v, join(path, i), allow) for i, v in enumerate(data))
    if kind(data) != "dict":
        return data
    tag = next((k for k in data if k.startswith("$")), None)
    if tag is None:
        return FrozenDict((k, _decode(v, join(path, k), allow)) for k, v in data.items())
    try:
        if tag not in _DECODERS:
            raise ConfigError(f"{tag!r} is not a kind of value this version of dovetail knows.")
        return _DECODERS[tag](data, path, allow)
    except _Placed:
        raise
    except ConfigError as e:
        raise _Placed(f"{path or ROOT}: {e}") from e
    except (TypeError, ValueError, KeyError, AttributeError) as e:
        raise _Placed(f"{path or ROOT}: {json.dumps(data)[:200]} is not a value of the kind {tag}: {e!r}.") from e


class _Placed(ConfigError):
    """An error that already names its place in the tree."""


def _refer(path: Any, allow: _Allow, listed: frozenset[str] = frozenset()) -> Any:
    """Returns what a file may name: what is on the list, a class of ours if there is none, or what is allowed."""
    if allow is None or path in listed:
        return import_object(path)
    if not listed and _OURS.match(path):
        return import_object(path, allow=("dovetail",))
    return import_object(path, allow=allow)


def _decode_config(data: dict[str, Any], path: str, allow: _Allow) -> Any:
    cls = _refer(data["$config"], allow)
    if not (isinstance(cls, type) and issubclass(cls, Node) and hasattr(cls, "build")):
        raise ConfigError(f"{data['$config']} is not a config class.")
    if "$of" not in data and hasattr(cls, "_made_from"):
        raise ConfigError(f"{data['$config']} needs $of, which says which function it is of.")
    if "$of" in data:
        cls = cls._class_of(_refer(data["$of"], allow, FUNCTIONS))
    fields = {k: _decode(v, join(path, k), allow) for k, v in data.items() if not k.startswith("$")}
    try:
        cfg = cls()._with(fields, path)
    except ConfigError as e:
        raise _Placed(str(e)) from None
    if "$of" in data and allow is not None and data["$of"] in FUNCTIONS:
        for place, node in find(cfg, Node):
            if not hasattr(node, "_made_from"):
                raise ConfigError(f"{place} is a {show(node)}, which {data['$of']} may not be given by a file.")
    object.__setattr__(cfg, "_explicit", _explicit(data, cfg))
    return cfg


def _explicit(data: dict[str, Any], cfg: Any) -> frozenset[str]:
    """Returns which fields were set: as the file says, or if it does not, those that differ from their defaults."""
    if "$explicit" not in data:
        return frozenset(name for name, value in cfg._values().items() if not same(value, cfg._defaults[name]))
    names = data["$explicit"]
    if kind(names) != "list" or not all(isinstance(name, str) and name in cfg._values() for name in names):
        known = ", ".join(cfg._values())
        raise ConfigError(f"$explicit: expected a list of field names ({known}), found {spell(names)[:200]}.")
    return frozenset(names)


def _decode_list(data: Any, path: str, allow: _Allow) -> Any:
    if kind(data) != "list":
        raise ConfigError(f"expected a list, found {spell(data)}.")
    return _decode(data, path, allow)


def _decode_dict(data: dict[str, Any], path: str, allow: _Allow) -> Any:
    pairs: Any = data["$dict"]
    if kind(pairs) != "list" or any(kind(pair) != "list" or len(pair) != 2 for pair in pairs):
        raise ConfigError(f"expected a list of [key, value], found {spell(pairs)}.")
    keys = [_decode(key, path, allow) for key, _ in pairs]
    found = FrozenDict((key, _decode(pair[1], join(path, key), allow)) for key, pair in zip(keys, pairs, strict=True))
    if len(found) < len(keys):
        raise ConfigError(f"a key stands twice in {spell(tuple(keys))[:200]}.")
    return found


def _decode_set(data: dict[str, Any], path: str, allow: _Allow) -> Any:
    items = _decode_list(data["$set"], path, allow)
    if len(frozenset(items)) < len(items):
        raise ConfigError(f"a value stands twice in {spell(items)[:200]}.")
    return frozenset(items)


def _decode_enum(data: dict[str, Any], path: str, allow: _Allow) -> Any:
    cls = import_object(data["$enum"]) if data["$enum"] in TYPES else _refer(data["$enum"], allow)
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise ConfigError(f"{data['$enum']} is not an enum.")
    if "value" in data and issubclass(cls, enum.Flag):
        return cls(data["value"])
    if data["name"] not in cls.__members__:
        raise ConfigError(f"{data['$enum']} has no member {data['name']!r}. It has: {', '.join(cls.__members__)}.")
    return cls[data["name"]]


def _decode_dtype(data: dict[str, Any], path: str, allow: _Allow) -> Any:
    importlib.import_module("ml_dtypes")  # Teaches NumPy the names bfloat16, float8_e4m3fn, ...
    return importlib.import_module("numpy").dtype(str(data["$dtype"]))


def _decode_partial(data: dict[str, Any], path: str, allow: _Allow) -> Any:
    func = _decode(data["$partial"], path, allow)
    if not callable(func):
        raise ConfigError("a partial needs a callable.")
    keywords = _decode(data["keywords"], path, allow)
    return freeze(functools.partial(func, *_decode_list(data["args"], path, allow), **keywords), path or ROOT)


_DECODERS: dict[str, Callable[[dict[str, Any], str, _Allow], Any]] = {
    "$config": _decode_config,
    "$float": lambda data, path, allow: float(data["$float"]),
    "$tuple": lambda data, path, allow: tuple(_decode_list(data["$tuple"], path, allow)),
    "$set": _decode_set,
    "$dict": _decode_dict,
    "$partial": _decode_partial,
    "$enum": _decode_enum,
    "$marker": lambda data, path, allow: _MARKERS[data["$marker"]],
    "$dtype": _decode_dtype,
    "$import": lambda data, path, allow: _refer(data["$import"], allow, FUNCTIONS | TYPES),
}
