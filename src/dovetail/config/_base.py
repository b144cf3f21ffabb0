# SPDX-License-Identifier: Apache-2.0
"""`ConfigBase`: a frozen, typed, comparable record whose fields are its annotations."""

# pyright: reportPrivateUsage=false
# `_hints_of` works on the class it is written for.

import functools
import inspect
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, dataclass_transform

from ._errors import ConfigError, did_you_mean
from ._importing import public_path
from ._inherit import Drop, check_losses, checked_drop, inherit
from ._json import decode_trusted, encode
from ._traverse import get_in, holds_nodes, parts, put_in
from ._types import conform
from ._values import DEFAULT, REQUIRED, Node, bare_name, freeze, kind, spell

_NOT_FIELDS = (types.FunctionType, property, functools.cached_property, classmethod, staticmethod, type)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class ConfigBase(Node):
    """Base of every config. A subclass lists its fields as annotations with defaults:

    >>> class Adam(ConfigBase):
    ...     rate: float = REQUIRED
    ...     betas: tuple[float, float] = (0.9, 0.95)
    >>> Adam(rate=1).set(betas=(0.9, 0.99))
    Adam(rate=1.0, betas=(0.9, 0.99))
    """

    __slots__ = ("_cache", "_explicit")  # Beside __dict__, which holds the fields and nothing else.
    _defaults: ClassVar[dict[str, Any]] = {}
    _declared_in: ClassVar[dict[str, "type[ConfigBase]"]] = {}
    _hints: ClassVar[dict[str, Any] | None] = {}
    keeps_defaults: ClassVar[bool] = False  # Whether `inherit` takes over only what was set, and no defaults.
    renamed: ClassVar[Mapping[str, str]] = {}  # Fields that there were, and what says the same now.
    _fills_children: ClassVar[bool] = True  # Whether what is built sets fields of the configs inside.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        bases = [base for base in reversed(cls.__mro__[1:]) if issubclass(base, ConfigBase)]
        cls._declared_in = {name: base for base in bases for name, home in base._declared_in.items() if home is base}
        cls._defaults = {name: home._defaults[name] for name, home in cls._declared_in.items()}
        annotated = inspect.get_annotations(cls)
        own = [name for name, hint in annotated.items() if not _is_class_var(hint)]
        for name, value in list(vars(cls).items()):
            if name not in annotated and not name.startswith("_") and not isinstance(value, _NOT_FIELDS):
                raise ConfigError(f"{bare_name(cls)}.{name} has no type. Write `{name}: <type> = {value!r}`.")
        for name in own:
            if name.startswith("_") or hasattr(ConfigBase, name):
                raise ConfigError(f"{bare_name(cls)}.{name}: a field may not be called {name!r}. Choose another name.")
            cls._defaults[name] = freeze(vars(cls).get(name, REQUIRED), f"{bare_name(cls)}.{name}")
            cls._declared_in[name] = cls
            setattr(cls, name, cls._defaults[name])
        cls._hints = None
        try:
            _hints_of(cls)
        except ConfigError as e:
            if not isinstance(e.__cause__, NameError):
                raise
            cls._hints = None  # A forward reference: looked up again when the first instance is made.

    if not TYPE_CHECKING:  # A type checker sees the parameters that dataclass_transform derives from the fields.

        def __init__(self, **fields):
            self._fill(fields, {**type(self)._defaults}, frozenset(), self._label())

        def __getattr__(self, name):
            hint = "" if name.startswith("_") else did_you_mean(name, self._defaults)
            hint = f" It is now {self.renamed[name]}." if name in self.renamed else hint
            raise AttributeError(f"{self._label()} has no field {name!r}.{hint}", name=name, obj=self)

    def _fill(self, fields: dict[str, Any], values: dict[str, Any], explicit: frozenset[str], where: str) -> None:
        hints = _hints_of(type(self))
        for name, value in fields.items():
            if name not in hints:
                raise ConfigError(self._unknown(name, where))
            place = f"{where}.{name}" if where else name
            if value is DEFAULT and self._defaults[name] is not DEFAULT:
                raise ConfigError(f"{place}: has no default of its own that DEFAULT could stand for.")
            values[name] = self._checked(freeze(value, place), hints[name], place)
        self.__dict__.update(values)
        object.__setattr__(self, "_explicit", explicit | fields.keys())
        object.__setattr__(self, "_cache", None)

    @classmethod
    def _label(cls) -> str:
        """What the class is called in errors."""
        return bare_name(cls)

    def _checked(self, value: Any, hint: Any, where: str) -> Any:
        return conform(value, hint, where)

    def _unknown(self, name: str, where: str) -> str:
        place = "" if where == self._label() else f"{where or '(root)'}: "
        hint = did_you_mean(name, self._defaults) or f" It has: {', '.join(self._defaults) or 'no fields'}."
        hint = f" It is now {self.renamed[name]}." if name in self.renamed else hint
        return f"{place}{self._label()} has no field {name!r}.{hint}"

    def _with(self, fields: dict[str, Any], where: str) -> Self:
        """`set` with the place to name in errors; only the fields given are checked again."""
        new = object.__new__(type(self))
        new._fill(fields, dict(self.__dict__), self._explicit, where)
        return new

    def _values(self) -> dict[str, Any]:
        return self.__dict__

    @classmethod
    def _field_types(cls) -> dict[str, Any]:
        return _hints_of(cls)

    def _identity(self) -> dict[str, str]:
        return {"$config": public_path(type(self))}

    def set(self, **fields: Any) -> Self:
        """Returns a copy with these fields changed. Names and types are checked."""
        return self._with(fields, self._label())

    def set_in(self, path: str, value: Any) -> Self:
        """Returns a copy of the tree with the value at a path changed, as in `set_in("model.layers[0].dim", 8)`."""
        return put_in(self, path, value)

    def get_in(self, path: str) -> Any:
        """Returns the value at a path."""
        return get_in(self, path)

    def inherit(self, old: "ConfigBase", *, drop: Drop = ()) -> Self:
        """Returns a copy that takes over from `old` all that it has a place for; what was set here stays.

        A field of `old` has a place in a field of the same name whose type it fits, whichever class declares it.
        Defaults of `old` are taken over as well, unless this class `keeps_defaults`, because to it equal names need not
        mean equal things: two optimizers, two kernels. A config in a field is taken over whole if it fits there. If it
        does not, or if another was set here, the one that is here inherits from it in the same way.

        A field that was set in `old` and has no place here is an error, unless `drop` names it. What `drop` names is
        never taken over. A field is set if someone gave it a value, be it the default; but a None, False, zero or
        empty value that is the default means that there is nothing to lose.

        Args:
            drop: names of fields, or paths of fields of configs inside, as in `("window", "query.bias")`; or
                "unplaced", which is whatever has no place.
        """
        made, losses = inherit(self, old, checked_drop(drop, [old]))
        check_losses([("", self, old, losses)])
        return made

    def build(self, *, path: str = "", **kwargs: Any) -> Any:
        """Makes the component this config describes; `path` is its place in the tree it belongs to."""
        raise ConfigError(f"{self._label()} is a plain record: there is no component to build from it.")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self._label()} is frozen. Use cfg.set({name}=...), which returns a copy.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self._label()} is frozen: {name!r} cannot be deleted.")

    def _key(self) -> tuple[int, Any]:
        """The hash, and what equality compares; computed once."""
        if self._cache is None:
            key = (type(self), *map(_key, self.__dict__.values()))
            object.__setattr__(self, "_cache", (hash(key), key))
        return cast(tuple[int, Any], self._cache)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ConfigBase) and self._key() == other._key())

    def __hash__(self) -> int:
        return self._key()[0]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        # Functions that JAX has wrapped do not pickle; their import paths do.
        return decode_trusted, (encode(self),)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={_repr(value)}" for name, value in self.__dict__.items())
        return f"{bare_name(type(self))}({inside})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from ._html import html_of  # Imported here: few configs are shown, and all are waited for.

        return html_of(self)


def fields_of(cfg: ConfigBase | type[ConfigBase]) -> dict[str, Any]:
    """Returns `{name: type}` of a config or config class, in order of declaration, inherited fields first."""
    return dict(_hints_of(cfg if isinstance(cfg, type) else type(cfg)))


def _key(value: Any) -> Any:
    """Returns a hashable that is equal exactly for equal values and types; nan is nan."""
    if isinstance(value, Node) or not holds_nodes(value):
        return value if isinstance(value, Node) else spell(value)
    return kind(value), frozenset((spell(key), _key(part)) for key, part in parts(value).items())


def _repr(value: Any) -> str:
    return repr(value) if isinstance(value, Node) or holds_nodes(value) else spell(value)


def _is_class_var(hint: Any) -> bool:
    if isinstance(hint, str):
        return hint.partition("[")[0].endswith("ClassVar")
    return hint is ClassVar or typing.get_origin(hint) is ClassVar


def _hints_of(cls: type[ConfigBase]) -> dict[str, Any]:
    """Returns the resolved annotations of a config class and checks its defaults, once."""
    hints = cls.__dict__.get("_hints")
    if hints is None:
        try:
            resolved = typing.get_type_hints(cls)
        except NameError as e:
            raise ConfigError(f"{bare_name(cls)}: {e}, in an annotation. Define or import it at module level.") from e
        hints = {name: resolved[name] for name in cls._defaults}
        for name, hint in hints.items():
            place = f"{bare_name(cls)}.{name}"
            default = conform(cls._defaults[name], hint, place)
            cls._defaults[name] = default
            setattr(cls, name, default)
        cls._hints = hints
    return hints
