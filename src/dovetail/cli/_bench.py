# SPDX-License-Identifier: Apache-2.0
"""`dovetail bench`: runs a benchmark of the clone that dovetail is in; programs to compare with are not installed."""

import argparse
import subprocess
import sys
from pathlib import Path

import dovetail
from dovetail.config import ConfigError
from dovetail.progress import is_quiet

_DIRECTORY = Path(dovetail.__file__).resolve().parents[2] / "benchmarks"


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command; those of a benchmark are its own."""
    parser.add_argument(
        "benchmark", choices=("train", "decode", "serve"), help="of a training step, of generation, or of servers"
    )
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the benchmark; `bench train --help` lists them")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    program = _DIRECTORY / f"{args.benchmark}.py"
    if not program.is_file():
        raise ConfigError(
            f"there is no {str(program)!r}: benchmarks need a clone of dovetail, and this one was installed without.\n"
            f"  In a clone: make venv && .venv/bin/dovetail bench {args.benchmark}"
        )
    quiet = ["--quiet"] if is_quiet() else []
    return subprocess.run([sys.executable, str(program), *args.options, *quiet]).returncode
