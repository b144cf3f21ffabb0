# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a gang: one stream of lines, and how far the whole is."""

import re
from collections import deque
from collections.abc import Sequence
from typing import TextIO

from dovetail.progress import is_quiet, is_terminal

_NOISE = re.compile(r"\[Gloo\] Rank|^==== |^[IWE]\d{4} \d\d:|^WARNING: All log messages before absl")
_ERASE = "\r\x1b[2K"
_SHORT_AGO = 200  # Lines in which a repetition is looked for.


class View:
    """Merges the logs: lines of process 0 as they are, those of others with their number, what all say once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, is_terminal(stream) and not is_quiet()
        self._said: deque[str] = deque(maxlen=_SHORT_AGO)
        self._status = ""
        self._held: list[tuple[int, list[str]]] | None = None

    def hold(self) -> None:
        """Keeps back what processes write, until `release`."""
        self._held = [] if self._held is None else self._held

    def release(self, rank: int) -> None:
        """Shows what one process has written meanwhile; what the others have is in their logs."""
        held, self._held = self._held or [], None
        for each, lines in held:
            if each == rank:
                self.log(each, lines)

    def log(self, rank: int, lines: Sequence[str]) -> None:
        """Shows what a process has written."""
        if self._held is not None:
            self._held.append((rank, list(lines)))
            return
        for line in lines:
            if _NOISE.search(line) or (line.strip() and line in self._said and rank):
                continue
            self._said.append(line)
            self._write(line if rank == 0 else f"[{rank}] {line}")

    def say(self, text: str) -> None:
        """Shows what the supervisor has to say."""
        for line in text.splitlines():
            self._write(f"launch: {line}")

    def status(self, text: str) -> None:
        """Shows how far the whole is, in a line that is written over; nothing where there is no terminal."""
        if self._live and text != self._status:
            self._status = text
            self._stream.write(f"{_ERASE}{text}")
            self._stream.flush()

    def close(self) -> None:
        """Takes the last line away."""
        if self._live and self._status:
            self._stream.write(_ERASE)
            self._stream.flush()

    def _write(self, line: str) -> None:
        if self._live and self._status:
            self._stream.write(_ERASE)
        safe = "".join(c if c.isprintable() or c == "\t" else "?" for c in line)
        self._stream.write(f"{safe}\n{self._status if self._live else ''}")
        self._stream.flush()
