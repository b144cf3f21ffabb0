# SPDX-License-Identifier: Apache-2.0
"""`Command`: the command line of an engine. What goes wrong is one clear error, with what it said."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dovetail.config import ConfigError


class Command:
    """Runs a program.

    Args:
        command: the program, and the arguments that it always has.
        install: what to do if it is not there.
        error: makes the error of what it said; the program's name and its first argument are given, too.
        seconds: to wait for an answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        install: str,
        error: Callable[[str, str], ConfigError],
        seconds: float = 120.0,
    ) -> None:
        self._command, self._install, self._error, self._seconds = list(command), install, error, seconds

    def run(
        self,
        *arguments: str,
        given: str | None = None,
        variables: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> str:
        """Returns what it prints. What is secret is given to it, or in variables: others see its arguments."""
        what = self._what(arguments)
        try:
            done = subprocess.run(
                [*self._command, *arguments],
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                text=True,
                timeout=self._seconds,
                check=False,
                env={**os.environ, **(variables or {})},
                cwd=directory,
            )
        except FileNotFoundError as e:
            raise self._missing() from e
        except subprocess.TimeoutExpired as e:
            raise ConfigError(
                f"{what}: no answer for {self._seconds:.0f} s.\n  Check the network, and try again."
            ) from e
        if done.returncode:
            raise self._error(what, done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def lines(self, *arguments: str) -> Iterator[str]:
        """Yields what it prints, while it runs; both kinds of output."""
        command = [*self._command, *arguments]
        out, err = subprocess.PIPE, subprocess.STDOUT
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True)
        except FileNotFoundError as e:
            raise self._missing() from e
        last = ""
        with process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    last = line.rstrip("\n")
                    yield last
            finally:
                if process.poll() is None:
                    process.terminate()
            if process.wait() > 0:
                raise self._error(self._what(arguments), last)

    def _what(self, arguments: Sequence[str]) -> str:
        return f"{self._command[0]} {arguments[0]}"

    def _missing(self) -> ConfigError:
        return ConfigError(f"there is no {self._command[0]} on the PATH.\n  {self._install}")


def quoted(text: str) -> str:
    """Returns the end of what a program said, to be part of an error.

    >>> print(quoted("no such thing"))
      It says:
        no such thing
    """
    lines = text.strip().splitlines()[-6:] or ["(nothing)"]
    return "\n".join(["  It says:", *(f"    {line}" for line in lines)])
