# SPDX-License-Identifier: Apache-2.0
"""Import paths: how a function or class is written down in text and JSON, and found again.

A path is `module:qualname`, as in `jax.nn:silu`. It is only given to an object that the path leads back to, so a
lambda or a local function has none and is refused where it is set.
"""

import importlib
import re
import sys
import types
from collections.abc import Iterable
from typing import Any

from ._errors import ConfigError, did_you_mean

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
# Python's own types are referred to without trusting the rest of `builtins` (eval, exec, open, ...).
PLAIN_TYPES = frozenset({"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "str", "tuple"})


def import_path(obj: Any) -> str:
    """Returns the `module:qualname` that leads back to `obj`, by its public name where it has one."""
    module = getattr(obj, "__module__", None) or getattr(getattr(obj, "__objclass__", None), "__module__", None)
    qualname = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    if isinstance(module, str) and isinstance(qualname, str) and "<" not in qualname:
        for name in (*_public_homes(module), module):
            if _is_at(obj, name, qualname):
                return f"{name}:{qualname}"
    raise ConfigError(
        f"{obj!r} cannot be found again by an import path, so a config holding it could not be saved.\n"
        "  Define it by name at the top level of a module, or wrap what makes it: config_for(make, ...)."
    )


def import_object(path: str, *, allow: Iterable[str] | None = None) -> Any:
    """Returns what `module:qualname` names; with `allow`, only from modules at or below those named.

    Nothing is imported before its name has passed, and the way from the module to the object goes through classes
    only: `numpy:os.system` does not reach `os`.
    """
    module_name, _, qualname = path.partition(":")
    if not _MODULE.match(module_name) or not _MODULE.match(qualname) or module_name.endswith(".__main__"):
        raise ConfigError(f"{path!r} is not an import path. Write 'module:name', as in 'jax.nn:silu'.")
    allowed = None if allow is None else tuple(allow)
    _permit(module_name, qualname, allowed)
    try:
        obj: Any = importlib.import_module(module_name)
    except ImportError as e:
        raise ConfigError(f"cannot import module {module_name!r} of {path!r}: {e}.") from e
    for part in qualname.split("."):
        owner = obj
        try:
            obj = getattr(owner, part)
        except AttributeError:
            where = f"module {module_name}" if owner is sys.modules[module_name] else repr(owner)
            raise ConfigError(f"{where} has no {part!r}.{did_you_mean(part, dir(owner))}") from None
        if isinstance(obj, types.ModuleType):
            raise ConfigError(
                f"{path!r} goes through the module {obj.__name__!r}. Name what you mean where it is defined."
            )
    home = getattr(obj, "__module__", None)
    if isinstance(home, str):
        _permit(home, qualname, allowed)
    return obj


def _permit(module: str, qualname: str, allowed: tuple[str, ...] | None) -> None:
    if allowed is None or (module == "builtins" and qualname in PLAIN_TYPES):
        return
    if not any(module == name or module.startswith(name + ".") for name in allowed):
        raise ConfigError(
            f"{module}:{qualname} is outside the modules this file may refer to ({', '.join(allowed)}).\n"
            f"  If you trust the file, pass allow=(..., {module.split('.')[0]!r})."
        )


def _public_homes(module: str) -> list[str]:
    """Packages that may re-export what `module` defines, nearest to the root first.

    `jax._src.nn.functions` gives `jax`, `jax.nn`, `jax.nn.functions`; a module without private parts gives nothing.
    """
    parts = module.split(".")
    public = [part for part in parts if not part.startswith("_")]
    if len(public) == len(parts):
        return []
    return [".".join(public[: i + 1]) for i in range(len(public))]


def _is_at(obj: Any, module: str, qualname: str) -> bool:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    # A bound classmethod is a new object at each access, equal to the last one.
    return found is obj or (isinstance(obj, types.MethodType) and found == obj)
