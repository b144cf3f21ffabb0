# SPDX-License-Identifier: Apache-2.0
"""Lines of a file that others write to, as they come."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

_READ = 1 << 16
_SOON = 0.2  # Seconds between two looks at the file.


def lines_of(file: Path, *, until: Callable[[], bool], every: float) -> Iterator[str]:
    """Yields the lines of a file, and those that come, until `until()`, which is asked now and then, is true.

    A file that is not there yet is waited for; one that was cut short is read from its beginning.
    """
    place, rest, asked, over = 0, b"", 0.0, False
    while True:
        data = b""
        try:
            with file.open("rb") as opened:
                size = opened.seek(0, 2)
                if size < place:
                    place, rest = 0, b""
                opened.seek(place)
                data = opened.read(_READ)
        except OSError:
            pass
        place += len(data)
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        if data:
            continue
        if over:
            if rest:
                yield rest.decode(errors="replace")
            return
        if time.monotonic() - asked >= every:
            over, asked = until(), time.monotonic()  # What was written before it is read once more.
            continue
        time.sleep(_SOON)
