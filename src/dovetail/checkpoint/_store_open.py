# SPDX-License-Identifier: Apache-2.0
"""From what a user names to the store it stands for."""

from pathlib import Path

from dovetail.storage import SECONDS

from ._store import Store
from ._store_objects import ObjectStore
from ._store_posix import PosixStore


def open_store(directory: str, *, where: str, seconds: float = SECONDS) -> Store:
    """Returns the store at a path or a URL; nothing is made or read.

    Args:
        where: what names it, for messages.
        seconds: after so many without an answer, a request for arrays in a store of objects has failed.
    """
    if "://" in directory:
        return ObjectStore(directory, where=where, seconds=seconds)
    return PosixStore(Path(directory).expanduser().absolute())
