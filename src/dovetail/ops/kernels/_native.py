# SPDX-License-Identifier: Apache-2.0
"""Kernels in C++ for the CPU of this machine: compiled by its compiler when they are first used, and then kept.

They are never required. Where there is no compiler, or it fails, `native_support` says so, and XLA computes the same.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax

from .._kernel_choice import Support

SWITCH = "DOVETAIL_NATIVE"  # "off": they are not used.

_SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-pthread", "-w")
_COMPILERS = ("c++", "g++", "clang++")
_HANDLERS = ("product", "paged_attention", "write_pages", "rms_norm", "rotate", "silu_gated", "add", "argmax")
_SECONDS = 300.0  # After which a compiler is given up.


_once = threading.Lock()


class Native(NamedTuple):
    """The kernels, or why there are none."""

    width: int = 0  # Numbers of a vector.
    panel: int = 0  # Columns of a matrix that lie together.
    threads: int = 0
    reason: str = ""  # One clause; empty: they are there.


def native_support() -> Support:
    """Says whether the kernels are there; the first call may compile them, which takes some seconds."""
    return Support(native().reason)


def native() -> Native:
    """Returns the kernels of this machine, compiled and known to XLA; threads that ask meanwhile wait."""
    with _once:
        return _opened()


@functools.cache
def _opened() -> Native:
    try:
        library = ctypes.CDLL(str(compiled(os.environ)))
        for name in (f"dovetail_{handler}" for handler in _HANDLERS):
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    except (_NotCompiled, OSError, AttributeError) as e:
        return Native(reason=str(e))
    sizes = [getattr(library, f"dovetail_{name}") for name in ("width", "panel", "threads")]
    for each in sizes:
        each.restype = ctypes.c_int64
    return Native(*(each() for each in sizes))


class _NotCompiled(Exception):
    """Why there are no kernels."""


def compiled(environ: Mapping[str, str]) -> Path:
    """Returns the shared library, made anew if there is none yet of these sources, flags, compiler, CPU and jaxlib.

    Processes that start at the same time may each make one; whichever is ready last replaces the same by the same.
    """
    if environ.get(SWITCH, "").lower() in ("0", "off", "false", "no"):
        raise _NotCompiled(f"{SWITCH} is {environ[SWITCH]}")
    if not hasattr(jax.ffi, "include_dir"):
        raise _NotCompiled("this jax has no headers for them")
    compiler = environ.get("CXX") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise _NotCompiled("there is no C++ compiler (c++, g++ or clang++) on the path")
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    directory = Path(base) / "dovetail" / "kernels"
    target = directory / f"{_digest(compiler)}.so"
    if target.is_file() and target.stat().st_uid == os.getuid():  # Whoever writes here can have code run by us.
        return target
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as made:
            return _made(compiler, Path(made) / "kernels.so").replace(target)
    except OSError as e:
        raise _NotCompiled(f"{str(directory)!r} cannot be written to: {e.strerror or e}") from e


def _made(compiler: str, target: Path) -> Path:
    command = [compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", str(_SOURCES / "handlers.cc"), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise _NotCompiled(f"{compiler} cannot be run: {e}") from e
    if done.returncode:
        errors = [line.strip() for line in done.stderr.splitlines() if "error" in line]
        raise _NotCompiled(f"{compiler} fails: {(errors or ['it does not say why'])[0][:200]}")
    return target


def _digest(compiler: str) -> str:
    about: list[Any] = [compiler, *_FLAGS, metadata.version("jaxlib"), platform.machine(), _processor()]
    sources = [path.read_text("utf-8") for path in sorted(_SOURCES.iterdir()) if path.suffix in (".cc", ".h")]
    return hashlib.sha256("\0".join([*about, *sources]).encode()).hexdigest()[:24]


def _processor() -> str:
    """Returns what the CPU can do, as far as the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "|".join(line for line in lines if line.partition(":")[0].strip() in ("model name", "flags", "Features"))
