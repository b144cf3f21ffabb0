# SPDX-License-Identifier: Apache-2.0
"""A program in place of the command line of an engine: it writes down how it was called, and says what it is told."""

import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

_TEXT = """#!{python} -S
import json, os, sys
given = "" if os.environ.get("NO_INPUT") or sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
variables = {{name: value for name, value in os.environ.items() if name.startswith("DOVETAIL")}}
whole = " ".join(sys.argv[1:]) + " " + given
with open({calls!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], given, variables, sorted(os.listdir("."))]) + "\\n")
answers, fails = json.load(open({answers!r}))
for sign, text in fails.items():
    if sign in whole:
        print(text, file=sys.stderr)
        sys.exit(1)
for sign, text in answers.items():
    if sign in whole:
        print(text, end="")
        break
"""


class Call(NamedTuple):
    """How it was called."""

    arguments: list[str]
    given: str  # What it has read.
    variables: dict[str, str]  # Of ours, in its environment.
    files: list[str]  # In its directory.


class Program:
    """The program `name`, the only one of that name on the PATH."""

    def __init__(self, name, directory: Path, monkeypatch) -> None:
        self._file = directory / "bin" / name
        self._file.parent.mkdir()
        self._calls, self._answers = directory / "calls", directory / "answers"
        text = _TEXT.format(python=sys.executable, calls=str(self._calls), answers=str(self._answers))
        self._file.write_text(text)
        self._file.chmod(0o755)
        monkeypatch.setenv("PATH", str(self._file.parent))
        self.says({})

    def says(self, answers: dict[str, str], *, fails: dict[str, str] | None = None) -> None:
        """Has it say a text if a sign is in what it is told, the first that is; and fail for other signs."""
        self._answers.write_text(json.dumps([answers, fails or {}]))
        self._calls.write_text("")

    def remove(self) -> None:
        """Takes it away."""
        os.remove(self._file)

    @property
    def calls(self) -> list[Call]:
        """How it was called since it was told what to say."""
        return [Call(*json.loads(line)) for line in self._calls.read_text().splitlines()]
