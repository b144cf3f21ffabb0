# SPDX-License-Identifier: Apache-2.0
"""Settings of the host that make JAX faster on CPUs. They are about memory and matrix products, not about models.

They act when a process starts, so a command that finds them missing starts itself again. None of them is required, and
`DOVETAIL_HOST=plain` turns them off. JAX is not imported here: it reads the settings when it is.
"""

import glob
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import NamedTuple

SWITCH = "DOVETAIL_HOST"  # "plain": change nothing. Set to "tuned" in a process that has been started again.

_JEMALLOC = ("/usr/lib/*-linux-gnu/libjemalloc.so.2", "/usr/lib64/libjemalloc.so.2", "/usr/lib/libjemalloc.so.2")
_KEEP_MEMORY = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0"
# Without jemalloc: memory in huge pages, and kept where that costs none. On a step with 100,000 page faults, 600 are
# left. Memory in one arena without mmap leaves none, and takes more than twice the memory: free places do not join.
_HUGE_PAGES = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1099511627776"
_HUGE_PAGES_SINCE = (2, 35)  # glibc.
_NO_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"  # Says "[never]" if so.
_YNN = "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT"
_ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/neuron*", "/dev/kfd")


class Setting(NamedTuple):
    """A setting, whether this process has it, and the variables that give it to a new process."""

    name: str
    active: bool
    text: str  # What it does; where it is not there and cannot be had, why.
    variables: dict[str, str]  # Empty: nothing to change.


def host_settings(environ: Mapping[str, str]) -> list[Setting]:
    """Returns the settings for a process with these variables; `environ` is that of the process to judge."""
    if environ.get("JAX_PLATFORMS", "cpu") not in ("", "cpu") or any(map(glob.glob, _ACCELERATORS)):
        return []
    return [_allocator(environ), _matrix_products(environ)]


def restart_with(settings: Iterable[Setting]) -> None:
    """Starts this program again with the settings it lacks; returns only if there is nothing to change."""
    variables = {name: value for setting in settings if not setting.active for name, value in setting.variables.items()}
    if not variables or os.environ.get(SWITCH) in ("plain", "tuned"):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables, SWITCH: "tuned"})


def _allocator(environ: Mapping[str, str]) -> Setting:
    name = "jemalloc"
    if name in environ.get("LD_PRELOAD", ""):
        return Setting(name, True, "keeps memory instead of asking for it anew at each step", {})
    found = [path for pattern in _JEMALLOC for path in sorted(glob.glob(pattern))]
    if not sys.platform.startswith("linux") or not found:
        return _huge_pages(environ)
    preload = " ".join([*filter(None, [environ.get("LD_PRELOAD")]), found[0]])
    variables = {"LD_PRELOAD": preload, "MALLOC_CONF": environ.get("MALLOC_CONF", _KEEP_MEMORY)}
    return Setting(name, False, "is installed, but this process does not use it", variables)


def _huge_pages(environ: Mapping[str, str]) -> Setting:
    """Returns what the allocator of the system can do instead of jemalloc."""
    name, tunables = "huge pages", environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.hugetlb" in tunables:
        return Setting(name, True, "memory is asked for in few large pieces", {})
    if not _has_huge_pages():
        return Setting(name, False, "not to be had here; jemalloc, installed, does more: a tenth of a step on CPU", {})
    variables = {"GLIBC_TUNABLES": ":".join([*filter(None, [tunables]), _HUGE_PAGES])}
    return Setting(name, False, "this process asks for memory in small pieces, anew at each step", variables)


def _has_huge_pages() -> bool:
    """Whether this is a Linux with a glibc that can, and they are not forbidden."""
    try:
        library, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        since = tuple(map(int, version.split(".")[:2]))
        with open(_NO_HUGE_PAGES) as file:
            return library == "glibc" and since >= _HUGE_PAGES_SINCE and "[never]" not in file.read()
    except (ValueError, OSError, AttributeError):
        return False


def _matrix_products(environ: Mapping[str, str]) -> Setting:
    name, flags = "YNN matrix products", environ.get("XLA_FLAGS", "")
    if "xla_cpu_experimental_ynn_fusion_type" in flags:
        return Setting(name, True, "XLA multiplies matrices by the library YNN", {})
    # An unknown flag ends the process, and this one is experimental: only for versions it was tried with.
    if not metadata.version("jaxlib").startswith("0.10."):
        return Setting(name, False, "only known to work with jaxlib 0.10", {})
    return Setting(name, False, "this process does not use them", {"XLA_FLAGS": f"{flags} {_YNN}".strip()})
