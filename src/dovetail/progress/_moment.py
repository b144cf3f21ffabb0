# SPDX-License-Identifier: Apache-2.0
"""`Moment`: a time by two clocks, of which one may jump and the other ends with the machine."""

import functools
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Moment(NamedTuple):
    """A point in time."""

    wall: float  # Seconds since 1970: comparable everywhere, but it may be set.
    clock: float  # Seconds of `time.monotonic`: never set, but comparable within one boot of one machine only.
    boot: str = ""  # Which boot that is; empty where the system does not say.

    def since(self, earlier: "Moment") -> float:
        """Returns the seconds from another moment to this one; none where it was later."""
        same = self.boot != "" and self.boot == earlier.boot
        return max(0.0, self.clock - earlier.clock if same else self.wall - earlier.wall)

    def before(self, seconds: float) -> "Moment":
        """Returns an earlier moment."""
        return Moment(self.wall - seconds, self.clock - seconds, self.boot)


def now() -> Moment:
    """Returns this moment."""
    return Moment(time.time(), time.monotonic(), boot())


@functools.cache
def boot() -> str:
    """Returns the name of this boot of this machine."""
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return ""


def age() -> float:
    """Returns for how many seconds this process has been running; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0.0
    try:
        fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        ticks = int(fields[19])  # `starttime`, the 22nd of all.
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
