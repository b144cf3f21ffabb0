# SPDX-License-Identifier: Apache-2.0
"""`Component`: a class with a nested `Config` that builds it, and the report of all that is missing."""
# pyright: reportPrivateUsage=false
# A component sets the owner of its config class.

import contextlib
import inspect
from collections.abc import Generator, Iterator
from contextvars import ContextVar
from typing import Any, ClassVar

from ._base import ConfigBase, fields_of
from ._errors import ConfigError
from ._traverse import find, parts
from ._types import name_of, node_types
from ._values import REQUIRED, bare_name, join


class MissingFieldsError(ConfigError):
    """Fields are still REQUIRED. `what` says which, without the way to set them, which depends on who asks."""

    def __init__(self, what: str, first: str) -> None:
        super().__init__(f"{what}\n  Set them, as in cfg.set_in({first!r}, ...).")
        self.what, self.first = what, first


class Incomplete(ConfigError):
    """A config inside a build still has REQUIRED fields; the outermost `build` reports them all together."""


# What the build in progress has found missing: lines "path: type". One list for each outermost `build`.
_missing: ContextVar[list[str] | None] = ContextVar("missing", default=None)
# The configs that were built, by path, where somebody asks for them.
_built: ContextVar[dict[str, ConfigBase] | None] = ContextVar("built", default=None)


class Component:
    """Anything that is made from a config: `MyComponent.Config(...).build()`.

    Each subclass has a `Config` of its own; one that declares none is given an empty one, so that a config always
    names exactly one class.
    """

    class Config(ConfigBase):
        """The fields a component needs. Override as `class Config(Base.Config):`."""

        _owner: ClassVar[type[Any]]

        def build(self, *, path: str = "", **kwargs: Any) -> Any:
            """Makes the component; one error lists every field still REQUIRED, with its path."""
            owner = type(self)._owner
            if inspect.isabstract(owner):
                raise ConfigError(f"{path or bare_name(type(self))}: {_abstract(owner)}")
            return guarded_build(self, lambda: owner(self, path=path, **kwargs), path)

    def __init__(self, cfg: Config, *, path: str = "") -> None:
        self._cfg: Any = cfg
        self._path = path

    @property
    def cfg(self) -> Any:
        """The config this component was built from."""
        return self._cfg

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited = tuple(dict.fromkeys(b.Config for b in cls.__bases__ if issubclass(b, Component)))
        own = cls.__dict__.get("Config")
        if own is None:
            names = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config", "__doc__": None}
            own = type("Config", inherited, names)
            cls.Config = own
        for base in inherited:
            if not (isinstance(own, type) and issubclass(own, base)):
                raise ConfigError(
                    f"{bare_name(cls)}.Config must derive from {bare_name(base)}, as {bare_name(cls)} does."
                )
        if "_owner" in own.__dict__:
            owner = bare_name(own._owner)
            raise ConfigError(
                f"{bare_name(cls)} takes over the Config of {owner}. Write `class Config({owner}.Config):`."
            )
        own._owner = cls


Component.Config._owner = Component  # The one class that __init_subclass__ does not see.


@contextlib.contextmanager
def built_configs() -> Generator[dict[str, ConfigBase]]:
    """Yields a dict that is filled with each config that is built inside, by path: with what its parent set in it."""
    built: dict[str, ConfigBase] = {}
    token = _built.set(built)
    try:
        yield built
    finally:
        _built.reset(token)


def guarded_build(cfg: ConfigBase, make: Any, path: str) -> Any:
    """Runs `make()` if `cfg` is complete; the outermost call turns all that is missing into one error."""
    if path and (built_so_far := _built.get()) is not None:
        built_so_far[path] = cfg
    found = _missing.get()
    if found is not None:
        _note_missing(cfg, path, found)
        return make()
    found = list[str]()
    token = _missing.set(found)
    try:
        _note_missing(cfg, path, found)
        built = make()
    except Exception as e:
        if found:
            found[:0] = _missing_fields(cfg, path, given=frozenset())
            raise _report(cfg, found) from (None if isinstance(e, Incomplete) else e)
        raise
    finally:
        _missing.reset(token)
    if found:
        raise _report(cfg, found)
    return built


def missing_fields(cfg: ConfigBase) -> list[str]:
    """Returns the paths of the fields that are not set and that no parent can fill: `build` would ask for them."""
    return [line.partition(":")[0] for line in _missing_fields(cfg, "", given=frozenset())]


def check_complete(cfg: ConfigBase) -> None:
    """Raises what `build` would raise if fields are not set that no parent can fill."""
    if found := list(_missing_fields(cfg, "", given=frozenset())):
        raise _report(cfg, found)


def _note_missing(cfg: ConfigBase, path: str, found: list[str]) -> None:
    if any(map(_is_unset, parts(cfg).values())):
        found.extend(_missing_fields(cfg, path, given=frozenset()))
        raise Incomplete(path)


def _missing_fields(value: Any, path: str, given: frozenset[str]) -> Iterator[str]:
    """Yields `path: type` of REQUIRED fields, without those that the parent can still fill.

    These are the fields `given` by the type of the slot: a parent sets what the interface of its child declares.
    """
    hints = fields_of(value) if isinstance(value, ConfigBase) else {}
    for key, part in parts(value).items():
        hint = hints.get(key, Any)
        if part is not REQUIRED:
            yield from _missing_fields(part, join(path, key), _fillable(value, hint, part) if hints else given)
        elif not hints or key not in given:
            advice = getattr(value, "when_missing", {}).get(key, "").replace("\n", "\n    ")
            yield f"{join(path, key)}: {name_of(hint)}" + (f"\n    {advice}" if advice else "")


def _fillable(cfg: Any, hint: Any, part: Any) -> frozenset[str]:
    """Names of the fields that `cfg` may set on what is in its slot; all of them where the slot is typed loosely."""
    slot = node_types(hint) or [ConfigBase]
    if not cfg._fills_children:
        return frozenset()
    if any(issubclass(Component.Config, cls) for cls in slot):
        slot = [type(node) for _, node in find(part, ConfigBase)]
    return frozenset(name for cls in slot for name in fields_of(cls))


def _is_unset(value: Any) -> bool:
    return value is REQUIRED or (not isinstance(value, ConfigBase) and any(map(_is_unset, parts(value).values())))


def _report(cfg: ConfigBase, found: list[str]) -> MissingFieldsError:
    lines = "".join(f"\n  {line}" for line in dict.fromkeys(found))
    count = len(set(found))
    what = "1 required field is" if count == 1 else f"{count} required fields are"
    return MissingFieldsError(f"{bare_name(type(cfg))}: {what} not set:{lines}", found[0].partition(":")[0])


def _abstract(owner: type) -> str:
    names = sorted(bare_name(cls) for cls in _concrete(owner))
    choice = f" Choose an implementation: {', '.join(names)}." if names else " No implementation of it is imported."
    return f"{bare_name(owner)} is an interface and cannot be built.{choice}"


def _concrete(owner: type) -> Iterator[type]:
    for cls in owner.__subclasses__():
        if not inspect.isabstract(cls):
            yield cls
        yield from _concrete(cls)
