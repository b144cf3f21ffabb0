# SPDX-License-Identifier: Apache-2.0
"""Whether a process that has left a note is still alive, where that can be known."""

import os
import uuid
from pathlib import Path


def kernel() -> str:
    """Returns what tells apart the kernels, and the views of their processes, in which a number means a process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # Not Linux: it is told apart from all others, and from itself; then watching decides.
        return uuid.uuid4().hex


def born(pid: int) -> str | None:
    """Returns when a process of this host was started; None if there is none that lives."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
