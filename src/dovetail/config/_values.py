# SPDX-License-Identifier: Apache-2.0
"""What a config may hold: plain data, frozen, each value with one canonical spelling."""

import enum
import functools
import re
import sys
from typing import Any, NoReturn, TypeVar, cast, final

from ._errors import ConfigError
from ._importing import import_path

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")


@final
class Marker:
    """A named singleton that stays itself through copy, deepcopy and pickle."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self._meaning = name, meaning

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name  # pickle and copy look the name up in this module

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self._name} {self._meaning} It has no truth value: test `value is {self._name}`.")


REQUIRED: Any = Marker("REQUIRED", "stands for a field that is not set yet.")
# In a `config_for` config: leave the argument out, so that the callable uses its own default.
DEFAULT: Any = Marker("DEFAULT", "stands for the callable's own default.")


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(f"this {kind(self)} belongs to a config and is frozen. Make a new one and pass it to cfg.set(...).")


class FrozenList(list[_T]):
    """A list that refuses to change, so that configs can share it and hash it."""

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] (lists have none)
        return hash(tuple(self))

    def __reduce__(self) -> Any:
        return FrozenList, (tuple(self),)


class FrozenDict(dict[_K, _V]):
    """A dict that refuses to change, so that configs can share it and hash it."""

    pop = popitem = clear = update = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] (dicts have none)
        return hash(frozenset(self.items()))

    def __reduce__(self) -> Any:
        return FrozenDict, (tuple(self.items()),)


class FrozenPartial(functools.partial[_T]):
    """A `functools.partial` compared by what it holds instead of by identity."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenPartial) and spell(self) == spell(other)

    def __hash__(self) -> int:
        return hash(spell(self))

    @property
    def keywords(self) -> dict[str, Any]:
        """The named arguments; the dict that the base class holds could be changed."""
        return FrozenDict(super().keywords)


class Node:
    """What traversal, text and JSON need of a config; `ConfigBase` is the one subclass.

    The names are private to this package, so that a config can have fields of any public name but its few methods.
    """

    def _values(self) -> dict[str, Any]:
        """Field values by name, in order of declaration."""
        raise NotImplementedError

    def _with(self, fields: dict[str, Any], where: str) -> Any:
        """A copy with these fields changed and checked; `where` is the place to name in errors."""
        raise NotImplementedError

    def _identity(self) -> dict[str, str]:
        """Import paths from which JSON finds the class again."""
        raise NotImplementedError

    @classmethod
    def _class_of(cls, made_from: Any) -> "type[Node]":
        """The subclass that stands for a callable; only `FunctionConfig` has such subclasses."""
        raise ConfigError(f"{bare_name(cls)} is not made from a callable.")


_ATOMS = (type(None), bool, int, float, str)
_KINDS = {
    "node": Node,
    "marker": Marker,
    "enum": enum.Enum,
    "list": FrozenList,
    "tuple": tuple,
    "dict": FrozenDict,
    "set": frozenset,
    "partial": FrozenPartial,
    "atom": _ATOMS,
}


def kind(value: Any) -> str:
    """Returns the sort of a frozen value: a key of `_KINDS`, "dtype", or "import" for functions and classes."""
    return _kind_of(cast(Any, type)(value))


@functools.cache
def _kind_of(cls: type) -> str:
    found = next((name for name, types in _KINDS.items() if issubclass(cls, types)), None)
    numpy = sys.modules.get("numpy")  # Not imported here: without it there are no dtypes.
    return found or ("dtype" if numpy is not None and issubclass(cls, numpy.dtype) else "import")


def freeze(value: Any, where: str) -> Any:
    """Returns `value` as plain frozen data, or raises if a config cannot hold it."""
    cls: Any = cast(Any, type)(value)
    if kind(value) == "dtype" and (value.fields is not None or not value.isnative):
        raise ConfigError(f"{where}: {value!r} is not a dtype that its name {value.name!r} describes.")
    if cls in _ATOMS or kind(value) in ("node", "enum", "marker", "partial", "dtype"):
        return value
    for plain in (int, float, str):
        if isinstance(value, plain):  # A subclass: keep the plain value.
            return plain(value)
    if cls in (list, FrozenList, tuple):
        items = (freeze(item, join(where, i)) for i, item in enumerate(value))
        return tuple(items) if cls is tuple else FrozenList(items)
    if cls in (set, frozenset):
        frozen = frozenset(freeze(item, f"item of {where}") for item in value)
        _refuse_nodes(frozen, f"item of {where}")
        return frozen
    if cls in (dict, FrozenDict):
        return _frozen_dict(value, where)
    if isinstance(value, functools.partial):
        args, keywords = freeze(tuple(value.args), where), freeze(dict(value.keywords), where)
        _refuse_nodes((*args, *keywords.values()), where)
        return FrozenPartial(freeze(value.func, where), *args, **keywords)
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return freeze(value.item(), where)  # A NumPy scalar is a number.
    if callable(value):
        try:
            import_path(value)
        except ConfigError as e:
            raise ConfigError(f"{where}: {e}") from None
        return value
    raise ConfigError(
        f"{where}: {value!r} ({cls.__module__}.{cls.__qualname__}) is not a config value.\n"
        "  A config holds plain data: numbers, strings, enums, dtypes, functions and classes by name, configs, and\n"
        "  lists, tuples, dicts and sets of these. For any other object, store what makes it: config_for(make, ...)."
    )


def _frozen_dict(value: Any, where: str) -> Any:
    frozen = FrozenDict((freeze(k, f"key of {where}"), freeze(v, join(where, k))) for k, v in value.items())
    _refuse_nodes(frozen.keys(), f"key of {where}")
    for k, v in frozen.items():
        if has_node(v) and (isinstance(k, bool) or not isinstance(k, (str, int))):
            raise ConfigError(
                f"{where}: the key {spell(k)} of a config is not a str or an int, so no path could name it."
            )
    return frozen


def _refuse_nodes(values: Any, where: str) -> None:
    if any(map(has_node, values)):
        raise ConfigError(f"{where}: no path could name a config there. Use a list or dict, or config_for(...).")


def has_node(value: Any) -> bool:
    """Whether `value` is a config, or a list, tuple or dict with one anywhere inside."""
    match kind(value):
        case "list" | "tuple":
            return any(map(has_node, value))
        case "dict":
            return any(map(has_node, value.values()))
        case found:
            return found == "node"


_NAME = re.compile(r"[A-Za-z_][\w-]*\Z")


def join(path: str, key: Any) -> str:
    """Appends a field name, index or key to a path.

    >>> join("layers[0]", "ffn"), join("", "model"), join("layers", 3)
    ('layers[0].ffn', 'model', 'layers[3]')
    """
    if not (isinstance(key, str) and _NAME.match(key)):
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key


def spell(value: Any) -> str:
    """Returns the canonical text of a value, in every process the same; a config is spelled as its class.

    Without configs in it, two values are spelled alike exactly if value *and type* are: 1, 1.0 and True differ.
    """
    match kind(value):
        case "atom" | "marker":
            return repr(value)
        case "list":
            return f"[{', '.join(map(spell, value))}]"
        case "tuple":
            return f"({', '.join(map(spell, value))}{',' if len(value) == 1 else ''})"
        case "set":
            return f"set({', '.join(sorted(map(spell, value)))})"
        case "dict":
            return "{" + ", ".join(sorted(f"{spell(k)}: {spell(v)}" for k, v in value.items())) + "}"
        case "partial":
            keywords = (f"{k}={spell(v)}" for k, v in sorted(value.keywords.items()))
            return f"partial({', '.join([spell(value.func), *map(spell, value.args), *keywords])})"
        case "enum":
            return f"{dotted(type(value))}.{value.name}"
        case "dtype":
            return f"dtype({value.name})"
        case "node":
            made_from = getattr(value, "_made_from", None)
            return f"config_for({dotted(made_from)})" if made_from else dotted(type(value))
        case _:
            return dotted(value)


def same(a: Any, b: Any) -> bool:
    """Whether two values are alike in value and type, configs inside them too; nan is nan."""
    return spell(a) == spell(b) and (not has_node(a) or a == b)


def dotted(obj: Any) -> str:
    """Returns the import path of `obj` with dots only, as people write it; a local class gives its bare name."""
    try:
        return import_path(obj).replace(":", ".")
    except ConfigError:
        return f"{obj.__module__}.{bare_name(obj)}"


def bare_name(cls: Any) -> str:
    """Returns the qualified name of a class without the functions it was defined in."""
    return str(cls.__qualname__).rpartition("<locals>.")[2]
