# SPDX-License-Identifier: Apache-2.0
"""A file system that is really full after a megabyte or so."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """Mounts a file system of so many bytes, in memory; skips the test where that is not allowed."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, leave: int = 0) -> Path:
    """Writes a file until so many bytes are left; delete it to have room again."""
    file = place / "filler"
    with open(file, "wb", buffering=0) as opened, contextlib.suppress(OSError):
        while True:
            opened.write(bytes(4096))
    if leave:
        with open(file, "r+b") as opened:
            opened.truncate(max(0, file.stat().st_size - leave))
    return file
