# SPDX-License-Identifier: Apache-2.0
"""Compiled programs, kept by JAX on disk, so that a run that starts again need not wait for the compiler.

JAX finds a program by its text, its options, the compiler's flags and the versions of all that took part. Programs for
CPUs also depend on what the CPU can do, so each kind of machine has a directory of its own: a home may be shared.

JAX is not imported here: it reads the variables when it is.
"""

import contextlib
import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_DIRECTORY, _SIZE, _LEAST = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_COMPILATION_CACHE_MAX_SIZE",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
)
_SWITCH = "JAX_ENABLE_COMPILATION_CACHE"
_BYTES = 4 * 2**30  # The programs that were not used for the longest time go first.
_SECONDS = 0.1  # What compiles in less is not kept.


class KeptPrograms(NamedTuple):
    """Where programs are kept."""

    variables: dict[str, str]  # For JAX; empty: programs are not kept, or as the environment says.
    problem: str = ""  # Why they are not kept, if the user did not say so.


def kept_programs(environ: Mapping[str, str]) -> KeptPrograms:
    """Returns the settings with which programs are kept, in a directory of the user that is made here.

    What the environment says wins: `JAX_COMPILATION_CACHE_DIR` is another directory, and with
    `JAX_ENABLE_COMPILATION_CACHE=false` there is none.
    """
    off = environ.get(_SWITCH, "").lower() in ("0", "false", "f", "n", "no", "off")
    if _DIRECTORY in environ or off:
        return KeptPrograms({})
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    directory = Path(base) / "dovetail" / "programs" / _machine()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _swept(directory)
    except OSError as e:
        return KeptPrograms({}, f"compiled programs are not kept: {str(directory)!r}: {e.strerror or e}.")
    usual = {_DIRECTORY: str(directory), _SIZE: str(_BYTES), _LEAST: str(_SECONDS)}
    return KeptPrograms({name: value for name, value in usual.items() if name not in environ})


def _swept(directory: Path) -> None:
    """Removes what a process left behind that was killed while it wrote; raises if the directory cannot be used.

    JAX writes a program first, then the time of its last use, both under a lock.
    """
    import filelock

    if directory.stat().st_uid != os.getuid():  # Whoever writes here can have code run by those who read.
        raise PermissionError(0, "it belongs to another user")
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(0, "it cannot be written to")
    with contextlib.suppress(filelock.Timeout), filelock.FileLock(directory / ".lockfile", timeout=1):
        for path in directory.glob("*-cache"):
            if not path.with_name(f"{path.name.removesuffix('-cache')}-atime").exists():
                path.unlink()


def _machine() -> str:
    """Returns a name for all machines whose CPUs can do the same."""
    about = [platform.machine(), sys.platform]
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0].splitlines()
        fields = ("model name", "flags", "Features", "CPU implementer", "CPU part")
        about += [line for line in lines if line.partition(":")[0].strip() in fields]
    except OSError:
        about.append(platform.processor())
    return f"{platform.machine()}-{hashlib.sha256('|'.join(about).encode()).hexdigest()[:12]}"
