# SPDX-License-Identifier: Apache-2.0
"""Contenders: programs that are started once and run when told to, so that they can be timed in turn.

`dovetail bench` starts the benchmarks that compare them, and they share these options and this way to report.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from contenders._problem import Problem

from dovetail.config import ConfigError
from dovetail.hardware import host_settings, machine

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


def options(name: str, text: str) -> argparse.ArgumentParser:
    """Returns a parser with the options of all benchmarks of contenders."""
    parser = argparse.ArgumentParser(prog=f"dovetail bench {name}", description=text)
    parser.add_argument("--torch-python", metavar="PATH", help="an interpreter with PyTorch, if this one has none")
    parser.add_argument("--small", action="store_true", help="a model of 2 layers, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(
    parser: argparse.ArgumentParser,
    bench: Callable[[argparse.Namespace, Problem], Any],
    text: Callable[[Any, dict[str, Any]], str],
) -> int:
    """Runs a benchmark with the options of this process, and prints its report; returns the exit code."""
    args = parser.parse_args()
    small = Problem(vocab_size=512, dim=64, hidden_dim=128, num_layers=2, num_heads=2, seq_len=64, batch_size=2)
    try:
        report = bench(args, small if args.small else Problem())
    except ConfigError as e:
        print(f"{parser.prog}: {e}", file=sys.stderr)
        return 2
    if args.json:
        about = {"problem": dataclasses.asdict(report.problem), "rows": [row._asdict() for row in report.rows]}
        print(json.dumps({"machine": machine(), **report._asdict(), **about}, indent=2))
    else:
        print(text(report, machine()))
    return 0
