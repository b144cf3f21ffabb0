# SPDX-License-Identifier: Apache-2.0
"""`Command`: the command line of an engine. What goes wrong is one clear error, with what it said."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
                encoding="utf-8",
                errors="replace",
                timeout=self._seconds,
                check=False,
                env={**os.environ, **(variables or {})},
                cwd=directory,
            )
        except OSError as e:
            raise self._not_run(e) from e
        except subprocess.TimeoutExpired as e:
            raise ConfigError(
                f"{what}: no answer for {self._seconds:.0f} s.\n  Check the network, and try again."
            ) from e
        if done.returncode:
            raise self._error(what, done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Returns what it prints, as JSON; None if that is nothing."""
        text = self.run(*arguments)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as e:
            raise ConfigError(f"{self._what(arguments)}: it printed what is no JSON: {text[:100]!r}.") from e

    def lines(self, *arguments: str) -> Iterator[str]:
        """Yields what it prints, while it runs; both kinds of output."""
        command = [*self._command, *arguments]
        out, err = subprocess.PIPE, subprocess.STDOUT
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, encoding="utf-8", errors="replace"
            )
        except OSError as e:
            raise self._not_run(e) from e
        last = ""
        with process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    last = line.rstrip("\n")
                    yield last
            except BaseException:  # Nobody reads on.
                process.terminate()
                raise
        if process.returncode > 0:
            raise self._error(self._what(arguments), last)

    def _what(self, arguments: Sequence[str]) -> str:
        return f"{self._command[0]} {arguments[0]}"

    def _not_run(self, error: OSError) -> ConfigError:
        if isinstance(error, FileNotFoundError):
            return ConfigError(f"there is no {self._command[0]} on the PATH.\n  {self._install}")
        return ConfigError(f"{self._command[0]} cannot be run: {error.strerror}.\n  Look at what is on the PATH there.")


def quoted(text: str) -> str:
    """Returns the end of what a program said, to be part of an error.

    >>> print(quoted("no such thing"))
      It says:
        no such thing
    """
    lines = text.strip().splitlines()[-6:] or ["(nothing)"]
    return "\n".join(["  It says:", *(f"    {line}" for line in lines)])
