# SPDX-License-Identifier: Apache-2.0
"""How many pages there is room for, and what to say if there are too few."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.config import ConfigError


def free_bytes(devices: Sequence[Any]) -> int | None:
    """Returns the memory of these devices that nothing uses, all together; None: they do not say."""
    found = 0
    for device in devices:
        stats = device.memory_stats() if device.platform != "cpu" else None
        if stats is not None and "bytes_limit" in stats:
            found += stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    if found:
        return found
    if any(device.platform != "cpu" for device in devices):
        return None
    try:
        return _available()
    except (OSError, ValueError, AttributeError):  # Not a Unix.
        return None


def _available() -> int:
    """Returns the memory of this machine that programs can still have."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            values = dict(line.split(":", 1) for line in file)
        return int(values["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fitting_tokens(wanted: int, least: int, page_bytes: Mapping[str, int], page: int, room: int | None) -> int:
    """Returns for how many tokens of all sequences together there is room, `wanted` at most.

    Args:
        least: tokens that there must be room for: those of the longest sequence.
        page_bytes: of each group of layers.
        room: bytes; None: as much as is wanted.
    """
    each = sum(page_bytes.values()) / page
    if room is None or not each or wanted * each <= room:
        return wanted
    fits = int(room / each) // page * page
    if fits < least:
        raise ConfigError(
            f"a sequence of {least:,} tokens needs {least * each / 1e9:.2f} GB of state, and there is room for "
            f"{room / 1e9:.2f} GB: {fits:,} tokens.\n"
            f"  Use max_length={max(page, fits)} or less, a smaller model or dtype, more devices, or a larger memory=."
        )
    return fits
