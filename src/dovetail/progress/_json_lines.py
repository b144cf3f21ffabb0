# SPDX-License-Identifier: Apache-2.0
"""Files of JSON lines that somebody else is writing: what is torn, or no object, is passed over."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def json_lines(file: Path, *, tail: int | None = None) -> Iterator[dict[str, Any]]:
    """Yields the objects in a file, one a line; none where there is no file.

    Args:
        tail: only what is in so many bytes at its end.
    """
    try:
        with file.open("rb") as opened:
            if tail is not None:
                opened.seek(max(0, opened.seek(0, os.SEEK_END) - tail))
            for line in opened:
                if (found := json_object(line)) is not None:
                    yield found
    except OSError:
        return


def json_object(line: bytes | str) -> dict[str, Any] | None:
    """Returns the object in a line; None if it is torn, or something else.

    >>> json_object('{"step": 1}'), json_object('{"step": 1, "lo'), json_object("[1]")
    ({'step': 1}, None, None)
    """
    try:
        found = json.loads(line.decode(errors="replace") if isinstance(line, bytes) else line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
