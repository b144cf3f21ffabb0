# SPDX-License-Identifier: Apache-2.0
"""`config_for`: a config for any function or class, from its signature."""
# pyright: reportPrivateUsage=false
# The classes made here fill in the private slots of ConfigBase.

import functools
import inspect
import typing
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Self, TypeVar

from ._base import ConfigBase, fields_of
from ._component import guarded_build
from ._errors import ConfigError
from ._importing import public_path
from ._traverse import parts
from ._types import is_plain, node_types
from ._values import DEFAULT, REQUIRED, Node, bare_name, dotted, freeze, join, kind

_T = TypeVar("_T")


class FunctionConfig(ConfigBase, Generic[_T]):
    """A config whose fields are the parameters of a callable and whose `build()` calls it.

    Configs among the arguments are built first, unless the parameter's annotation asks for a config. A parameter
    without default is REQUIRED. `*args` is a field holding a tuple, `**kwargs` a field holding a dict, and a name that
    only `**kwargs` takes goes there.
    """

    _made_from: ClassVar[Any] = None
    keeps_defaults: ClassVar[bool] = True
    _fills_children: ClassVar[bool] = False
    _signature: ClassVar[inspect.Signature]

    def build(self, *, path: str = "", **kwargs: Any) -> _T:
        """Calls the callable with the fields as arguments."""
        if kwargs:
            raise ConfigError(f"{dotted(self._made_from)}: set {', '.join(kwargs)} as fields, not in build().")
        return guarded_build(self, lambda: self._call(path), path)

    def _call(self, path: str) -> _T:
        hints = fields_of(self)
        given = OrderedDict[str, Any]()
        for name, value in self._values().items():
            if value is DEFAULT:
                given[name] = self._signature.parameters[name].default
            else:
                given[name] = value if node_types(hints[name]) else _built(value, join(path, name))
        bound = inspect.BoundArguments(self._signature, given)
        return self._made_from(*bound.args, **bound.kwargs)

    def _with(self, fields: dict[str, Any], where: str) -> Self:
        extra = next((p.name for p in self._signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        unknown = {name: value for name, value in fields.items() if name not in self._defaults}
        if extra is not None and unknown:
            known = {name: value for name, value in fields.items() if name in self._defaults}
            rest = known.get(extra, getattr(self, extra))
            if not isinstance(rest, dict):
                raise ConfigError(f"{where}.{extra}: expected dict[str, Any], found {rest!r}.")
            fields = {**known, extra: {**rest, **unknown}}
        return super()._with(fields, where)

    @classmethod
    def _label(cls) -> str:
        return dotted(cls._made_from) if cls._made_from else bare_name(cls)

    def _checked(self, value: Any, hint: Any, where: str) -> Any:
        built_first = isinstance(value, ConfigBase) and not node_types(hint)  # The result cannot be checked here.
        return value if built_first else super()._checked(value, hint, where)

    def _identity(self) -> dict[str, str]:
        return {"$config": public_path(FunctionConfig), "$of": public_path(self._made_from)}

    @classmethod
    def _class_of(cls, made_from: Any) -> type[Node]:
        return _class_for(made_from)


def config_for(make: Callable[..., _T], /, *args: Any, **fields: Any) -> FunctionConfig[_T]:
    """Returns a config of `make`, a function or class, with some of its arguments filled in.

    >>> config_for(round, 3.14159, ndigits=2).build()
    3.14

    A `functools.partial` gives the config of what it wraps, with its arguments filled in.
    """
    if isinstance(make, functools.partial):
        return config_for(make.func, *make.args, *args, **{**make.keywords, **fields})
    freeze(make, "config_for")  # Refuses what has no import path.
    cls = _class_for(make)
    try:
        bound = cls._signature.bind_partial(*args).arguments
    except TypeError as e:
        raise ConfigError(f"{dotted(make)}: {e}.") from None
    if twice := bound.keys() & fields.keys():
        raise ConfigError(f"{dotted(make)}: {', '.join(sorted(twice))} given twice, by position and by name.")
    return cls()._with({**bound, **fields}, cls._label())


@functools.cache
def _class_for(make: Any) -> type[FunctionConfig[Any]]:
    """Returns the config class of a callable; one class for each, so that `find` and `replace_all` can name it."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{dotted(make)} has no signature that Python can read. Wrap it in a function.") from e
    try:
        hints = typing.get_type_hints(make.__init__ if isinstance(make, type) else make)
    except Exception:  # Annotations of other people's code may refer to anything.
        hints = {}
    body: dict[str, Any] = {"__module__": __name__, "__annotations__": {}, "_made_from": staticmethod(make)}
    for name, parameter in signature.parameters.items():
        if hasattr(FunctionConfig, name) or name.startswith("_"):
            raise ConfigError(f"{dotted(make)}: a parameter called {name!r} cannot be a field. Wrap it in a function.")
        body["__annotations__"][name] = _annotation(parameter, hints.get(name, Any))
        body[name] = _default(parameter)
    cls = type(f"config_for({dotted(make)})", (FunctionConfig,), body)
    cls._signature = signature
    return cls


def _annotation(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return tuple[Any, ...]
    if parameter.kind is parameter.VAR_KEYWORD:
        return dict[str, Any]
    if node_types(hint):
        return hint
    if not is_plain(hint):  # Other people's annotations are often looser or stricter than what they take.
        return Any
    return hint | None if parameter.default is None else hint


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return ()
    if parameter.kind is parameter.VAR_KEYWORD:
        return {}
    if parameter.default is parameter.empty:
        return REQUIRED
    try:
        return freeze(parameter.default, parameter.name)
    except ConfigError:
        return DEFAULT


def _built(value: Any, path: str) -> Any:
    """Returns `value` with the configs in it built and the containers thawed."""
    if isinstance(value, ConfigBase):
        return value.build(path=path)
    items = {key: _built(part, join(path, key)) for key, part in parts(value).items()}
    match kind(value):
        case "list" | "tuple":
            return list(items.values()) if kind(value) == "list" else tuple(items.values())
        case "dict":
            return items
        case _:
            return value
