# SPDX-License-Identifier: Apache-2.0
"""The machine that this process runs on, as measurements are labelled."""

import os
import platform
from importlib import metadata
from pathlib import Path


def machine() -> dict[str, str | int]:
    """Returns the processor, its cores, memory, system and versions."""
    return {
        "processor": _first("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("dovetail", "jax", "jaxlib", "optax")},
    }


def _first(file: str, key: str) -> str:
    """Returns the first value of a key in a file of `key: value` lines."""
    path = Path(file)
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
