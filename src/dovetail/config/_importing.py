# SPDX-License-Identifier: Apache-2.0
"""Import paths: how a function or class is written down in text and JSON, and found again.

A path is `module:qualname`, as in `jax.nn:silu`. It is only given to an object that the path leads back to, so a
lambda or a local function has none and is refused where it is set.
"""

import importlib
import re
import sys
import types
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from ._errors import ConfigError, did_you_mean

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")


def import_path(obj: Any) -> str:
    """Returns the `module:qualname` that leads back to `obj`, by its public name where it has one."""
    module = getattr(obj, "__module__", None) or getattr(getattr(obj, "__objclass__", None), "__module__", None)
    qualname = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    if isinstance(module, str) and isinstance(qualname, str) and "<" not in qualname:
        for name in chain(_public_homes(module), [module]):  # One by one: the last of them take long to find.
            if _is_at(obj, name, qualname):
                return f"{name}:{qualname}"
    raise ConfigError(
        f"{obj!r} cannot be found again by an import path, so a config holding it could not be saved.\n"
        "  Define it by name at the top level of a module, or wrap what makes it: config_for(make, ...)."
    )


def import_object(path: str, *, allow: Iterable[str] | None = None) -> Any:
    """Returns the function or class at `module:qualname`; with `allow`, only from modules at or below those named.

    Nothing is imported before its name has passed. The way from the module to the object goes through classes only, so
    `numpy:os.system` does not reach `os`, and with `allow` it goes through public names only. Where a name is gone,
    `RENAMED` of its module may say what it is now.
    """
    module_name, _, qualname = path.partition(":")
    is_program = "__main__" in module_name.split(".")[1:]  # Importing it would run it.
    if not _MODULE.match(module_name) or not _MODULE.match(qualname) or is_program:
        raise ConfigError(f"{path!r} is not an import path. Write 'module:name', as in 'jax.nn:silu'.")
    allowed = None if allow is None else tuple(allow)
    _permit(module_name, qualname, allowed, public=True)
    try:
        obj: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as e:
        raise ConfigError(f"cannot import module {module_name!r} of {path!r}: {e}.") from e
    for part in qualname.split("."):
        if (not isinstance(obj, type) and obj is not sys.modules[module_name]) or part.startswith("__"):
            through = f"the module {obj.__name__!r}" if isinstance(obj, types.ModuleType) else repr(obj)
            raise ConfigError(f"{path!r} goes through {through}. Name a function or class where it is defined.")
        where = f"module {module_name}" if obj is sys.modules[module_name] else repr(obj)
        names, renamed = dir(obj), getattr(obj, "RENAMED", {})
        obj = getattr(obj, part, None)
        if obj is None:
            hint = f" It is now {renamed[part]}." if part in renamed else did_you_mean(part, names)
            raise ConfigError(f"{where} has no {part!r}.{hint}")
    if not callable(obj):
        raise ConfigError(f"{path!r} is {obj!r}. Name a function or class.")
    home = getattr(obj, "__module__", None)
    if isinstance(home, str):
        _permit(home, qualname, allowed, public=False)
    return obj


def public_path(obj: Any) -> str:
    """Returns the import path of `obj`, or raises if a file that mentions it could not be read again."""
    path = import_path(obj)
    if _is_private(path.replace(":", ".")):
        raise ConfigError(f"{path} is private to its module, so it cannot be written to a file. Give it a public name.")
    return path


def _permit(module: str, qualname: str, allowed: tuple[str, ...] | None, public: bool) -> None:
    if allowed is None:
        return
    above = next((name for name in allowed if module == name or module.startswith(f"{name}.")), None)
    if above is None:
        raise ConfigError(
            f"{module}:{qualname} is not among what a config file may refer to.\n"
            f"  If you trust the file, pass allow=(..., {module.split('.')[0]!r})."
        )
    if public and _is_private(f"{module.removeprefix(above)}.{qualname}"):
        raise ConfigError(f"{module}:{qualname} is private to its package. A file may refer to public names only.")


def _public_homes(module: str) -> Iterator[str]:
    """Yields modules that may re-export what a private one defines, the likely ones first, then all of the package.

    `jax._src.nn.functions` gives `jax`, `jax.nn`, `jax.nn.functions`, ...; a public module gives nothing.
    """
    if not _is_private(module):
        return
    package, *below = (part for part in module.split(".") if not part.startswith("_"))
    yield from (".".join([package, *below[:i]]) for i in range(len(below) + 1))
    known = [name for name in sys.modules if name.startswith(f"{package}.") and not _is_private(name)]
    yield from sorted(known, key=lambda name: (name.count("."), name))


def _is_private(path: str) -> bool:
    return any(part.startswith("_") for part in path.split(".")[1:])


def _is_at(obj: Any, module: str, qualname: str) -> bool:
    first, *rest = qualname.split(".")
    # Without getattr: a module may answer for names it has deprecated, with a warning.
    found = getattr(sys.modules.get(module), "__dict__", {}).get(first)
    for part in rest:
        found = getattr(found, part, None)
    # A bound classmethod is a new object at each access, equal to the last one.
    return found is obj or (isinstance(obj, types.MethodType) and found == obj)
