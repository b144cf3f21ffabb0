# SPDX-License-Identifier: Apache-2.0
"""A real pseudo-terminal: a program runs in it, is typed at, and what a person would see of it is read."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence

# Takes the terminal, and becomes the program. SIGINT may be ignored around us. A function between fork and exec would
# do it, but forks in a process with JAX are warned of.
_LEADS = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+")


class Terminal:
    """A program in a terminal of some size.

    Args:
        command: what runs, with the terminal as standard input and error, and as output unless `output` is given.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        environment: Mapping[str, str] = {},
        output: int | None = None,
    ) -> None:
        self.columns, self.written = columns, ""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

        self.process = subprocess.Popen(
            [sys.executable, "-ISc", _LEADS, *command],
            stdin=theirs,
            stdout=theirs if output is None else output,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        """Types a text."""
        os.write(self._ours, text.encode())

    def wait_for(self, text: str, *, seconds: float = 60.0) -> None:
        """Reads on until a text has been written; fails if the program ends before."""
        deadline = time.monotonic() + seconds
        while text not in self.written:
            assert self._read(deadline), f"{text!r} never came:\n{self.written}"

    def end(self, *, seconds: float = 60.0) -> int:
        """Reads all that is written until the program has ended; returns its exit code."""
        deadline = time.monotonic() + seconds
        while self._read(deadline):
            pass
        return self.process.wait(max(deadline - time.monotonic(), 1))

    def screen(self) -> list[str]:
        """Returns the lines that a person sees now."""
        return screen(self.written, self.columns)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"nothing came any more:\n{self.written}"
        with contextlib.suppress(OSError):  # Linux says it so when the program has gone.
            data = os.read(self._ours, 1 << 16)
            self.written += data.decode(errors="replace")
            return bool(data)
        return False

    def close(self) -> None:
        """Ends the program if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


@contextlib.contextmanager
def terminal(command: Sequence[str], **options: object) -> Iterator[Terminal]:
    """Runs a program in a terminal."""
    opened = Terminal(command, **options)  # type: ignore[arg-type]
    try:
        yield opened
    finally:
        opened.close()


def screen(written: str, columns: int = 80) -> list[str]:
    """Returns what a terminal of so many columns shows after all that was written to it.

    >>> screen("a\\r\\nlong line\\r\\x1b[2Kb", 80), screen("abcdef", 4)
    (['a', 'b'], ['abcd', 'ef'])
    """
    lines, row, column = [""], 0, 0
    for part in _CONTROL.findall(written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b["):
            count = int(part[2:-1]) if part[2:-1].isdigit() else 0
            if part[-1] == "K":
                lines[row] = "" if count == 2 else lines[row][:column]
            elif part[-1] == "A":
                row = max(row - max(count, 1), 0)
        else:
            for character in part:
                if column == columns:
                    row, column = row + 1, 0
                    lines += [""] * (row + 1 - len(lines))
                lines[row] = f"{lines[row]:<{column}}"
                lines[row] = lines[row][:column] + character + lines[row][column + 1 :]
                column += 1
    return [line.rstrip() for line in lines]
