# SPDX-License-Identifier: Apache-2.0
"""Contenders: programs that are started once and run when told to, so that they can be timed in turn."""

import contextlib
import dataclasses
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.launch import host_settings

from .contenders._problem import Problem

_HERE = Path(__file__).parent / "contenders"


def environment() -> dict[str, str]:
    """Returns the variables of this process, with the settings of the host that it lacks."""
    return {**os.environ, **{k: v for setting in host_settings(os.environ) for k, v in setting.variables.items()}}


def has_package(python: str, name: str) -> bool:
    """Returns whether an interpreter can import a package."""
    return subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode == 0


class Contender(NamedTuple):
    """A program that waits: what it said of itself, and how to make it run once."""

    about: dict[str, Any]
    step: Callable[[], dict[str, Any]]


@contextlib.contextmanager
def contender(python: str, program: tuple[str, ...], problem: Problem, environ: dict[str, str]) -> Iterator[Contender]:
    """Starts a program of `contenders` in an interpreter; it ends with the block."""
    command = [python, str(_HERE / program[0]), json.dumps(dataclasses.asdict(problem)), *program[1:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        write, read = process.stdin, process.stdout

        def answer() -> dict[str, Any]:
            line = read.readline()
            if not line:
                raise RuntimeError(f"{' '.join(program)} ended with exit code {process.wait()}; see its message above.")
            return json.loads(line)

        def step() -> dict[str, Any]:
            write.write("\n")
            write.flush()
            return answer()

        try:
            yield Contender(answer(), step)
        finally:
            write.close()
            process.wait()
