# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run tell each other: values, and what went wrong.

All of them have to call these functions, at the same place, from the thread that runs the training step.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

_T = TypeVar("_T")
_SHORT = 256  # Bytes that are sent at once, with their number; more take a second round.
_HEAD = 4


def is_first() -> bool:
    """Whether this process writes what is written once. (Any thread may ask.)"""
    return jax.process_index() == 0


def all_values(value: Any) -> list[Any]:
    """Returns the values, JSON data, of all processes."""
    if jax.process_count() == 1:
        return [value]
    data = json.dumps(value).encode()
    parts = _gathered(len(data).to_bytes(_HEAD, "little") + data[: _SHORT - _HEAD], _SHORT)
    sizes = [int.from_bytes(part[:_HEAD], "little") for part in parts]
    if max(sizes) <= _SHORT - _HEAD:
        parts = [part[_HEAD:] for part in parts]
    else:
        parts = _gathered(data, 1 << (max(sizes) - 1).bit_length())  # Few sizes: each is a program to compile.
    return [json.loads(part[:size]) for part, size in zip(parts, sizes, strict=True)]


def _gathered(data: bytes, size: int) -> list[bytes]:
    padded = np.zeros(size, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    return [bytes(each) for each in np.asarray(multihost_utils.process_allgather(padded))]


def together(work: Callable[[], _T], *, everywhere: bool = False) -> _T:
    """Does something in the first process, whose result, JSON data, all return; or `everywhere`, each with its own.

    If it fails in a process, all raise that error (that of the first of them, if there are several).
    """
    error, result = None, None
    try:
        if everywhere or is_first():
            result = work()
    except Exception as e:
        error = e
    if jax.process_count() == 1:
        if error is not None:
            raise error
        return result  # pyright: ignore[reportReturnType]
    kind = None if error is None else f"{type(error).__module__}:{type(error).__qualname__}"
    told = all_values([kind, str(error or ""), None if everywhere else result])
    failed = next((rank for rank, (kind, _, _) in enumerate(told) if kind is not None), None)
    if failed is None:
        return result if everywhere else told[0][2]  # pyright: ignore[reportReturnType]
    if failed == jax.process_index() and error is not None:
        raise error
    kind, text, _ = told[failed]
    raise _error(kind, f"{text}\n  (Process {failed} of {jax.process_count()} found this.)") from error


def _error(kind: str, text: str) -> Exception:
    """Returns an error of the same kind as that of another process, which has imported the same modules."""
    module, _, name = kind.partition(":")
    cls = getattr(sys.modules.get(module), name, None)
    for base in cls.__mro__ if isinstance(cls, type) and issubclass(cls, Exception) else ():
        if base is not cls and base.__module__ == "builtins":
            break
        with contextlib.suppress(TypeError):  # Its constructor takes something else; that of the class above may not.
            return base(text)
    return RuntimeError(f"{name}: {text}")
