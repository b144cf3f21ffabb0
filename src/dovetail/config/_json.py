# SPDX-License-Identifier: Apache-2.0
"""Configs as JSON, without loss, and back, without trusting the file.

Numbers, strings, booleans, None, lists and dicts with plain string keys are themselves. Everything else is an object
with one `$` key: `{"$tuple": [...]}`, `{"$import": "jax.nn:silu"}`, `{"$config": "module:Class.Config", ...fields}`.
"""
# pyright: reportPrivateUsage=false
# Node's methods are private to this package, not to its file.

import enum
import importlib
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, cast

from ._errors import ConfigError
from ._importing import import_object, public_path
from ._text import ROOT
from ._values import DEFAULT, REQUIRED, FrozenDict, FrozenList, FrozenPartial, Node, freeze, join, kind, same, spell

_Allow = tuple[str, ...] | None
_FORMAT = 1
_MARKERS = {"REQUIRED": REQUIRED, "DEFAULT": DEFAULT}
TRUSTED_MODULES = ("dovetail", "jax", "ml_dtypes", "numpy", "optax")


def to_json(cfg: Node, *, indent: int | None = 2) -> str:
    """Returns the whole tree as JSON text, from which `from_json` makes an equal one."""
    return json.dumps({"$format": _FORMAT, **encode(cfg)}, indent=indent, allow_nan=False, ensure_ascii=False)


def from_json(text: str, *, allow: Iterable[str] = ()) -> Any:
    """Returns the config written in `text`.

    A config file is data: what it refers to must be a public class, function or enum of the modules in
    `TRUSTED_MODULES` or `allow`, or of their submodules. Nothing else is imported, and nothing is called but the config
    classes. A field that the file does not mention has its default, so files from before the field existed can be read.
    """
    if isinstance(allow, str):
        raise ConfigError(f"allow: expected a list of module names, found {allow!r} (str).")
    try:
        data: Any = freeze(json.loads(text), "file")
        if kind(data) != "dict" or "$config" not in data:
            raise ConfigError("not a config: expected an object with the key '$config', as to_json writes it.")
        if data.get("$format") != _FORMAT:
            found = data.get("$format")
            raise ConfigError(
                f"config format {found!r} cannot be read: this version of dovetail reads format {_FORMAT}."
            )
        body = FrozenDict((key, value) for key, value in data.items() if key != "$format")
        return _decode(body, "", (*TRUSTED_MODULES, *allow))
    except RecursionError as e:
        raise ConfigError("the file is nested too deeply to be a config.") from e
    except _Placed as e:
        raise ConfigError(str(e)) from e.__cause__
    except ConfigError:
        raise
    except ValueError as e:
        raise ConfigError(f"not a JSON file: {e}.") from e


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


def _decode_config(data: dict[str, Any], path: str, allow: _Allow) -> Any:
    cls = import_object(data["$config"], allow=allow)
    if not (isinstance(cls, type) and issubclass(cls, Node) and hasattr(cls, "build")):
        raise ConfigError(f"{data['$config']} is not a config class.")
    if "$of" in data:
        cls = cls._class_of(import_object(data["$of"], allow=allow))
    fields = {k: _decode(v, join(path, k), allow) for k, v in data.items() if not k.startswith("$")}
    try:
        cfg = cls()._with(fields, path)
    except ConfigError as e:
        raise _Placed(str(e)) from None
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
    return FrozenDict((key, _decode(pair[1], join(path, key), allow)) for key, pair in zip(keys, pairs, strict=True))


def _decode_enum(data: dict[str, Any], path: str, allow: _Allow) -> Any:
    cls = import_object(data["$enum"], allow=allow)
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
    return FrozenPartial(func, *_decode_list(data["args"], path, allow), **keywords)


_DECODERS: dict[str, Callable[[dict[str, Any], str, _Allow], Any]] = {
    "$config": _decode_config,
    "$float": lambda data, path, allow: float(data["$float"]),
    "$tuple": lambda data, path, allow: tuple(_decode_list(data["$tuple"], path, allow)),
    "$set": lambda data, path, allow: frozenset(_decode_list(data["$set"], path, allow)),
    "$dict": _decode_dict,
    "$partial": _decode_partial,
    "$enum": _decode_enum,
    "$marker": lambda data, path, allow: _MARKERS[data["$marker"]],
    "$dtype": _decode_dtype,
    "$import": lambda data, path, allow: import_object(data["$import"], allow=allow),
}
