# SPDX-License-Identifier: Apache-2.0
"""Commands of dovetail in processes of their own, several at a time: what compilers say of the rows of a plan."""

import concurrent.futures
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.progress import phase

_FITS, _TOO_LARGE = 0, 3  # Exit codes of `dovetail compile`.
_MOST = 4  # Compilers at a time: each takes several cores, and gigabytes.


class Verified(NamedTuple):
    """What the compiler says of a run."""

    fits: bool
    gib: float | None  # Of a chip.
    seconds: float | None  # Of a step, by the compiled program.
    problem: str = ""  # Why there is nothing to say.


def verify(runs: Mapping[int, Sequence[str]]) -> Iterator[tuple[int, Verified]]:
    """Yields what the compiler says of each run, whichever is done first.

    Args:
        runs: the arguments of `dovetail compile` for each. What was compiled before is read again, so that a plan that
            was interrupted goes on where it was.
    """
    workers = max(1, min(_MOST, (os.cpu_count() or 1) // 2))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(_verified, arguments): key for key, arguments in runs.items()}
        try:
            with phase("compiling the best", len(runs), unit="ways to run") as compiled:
                while waiting:
                    done, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                    compiled.advance(len(done))
                    for each in done:
                        yield waiting.pop(each), each.result()
        finally:
            for each in waiting:
                each.cancel()


def _verified(arguments: Sequence[str]) -> Verified:
    code, report, error = _command(["compile", *arguments, "--no-suggestions"])
    if code not in (_FITS, _TOO_LARGE) or not report:
        return Verified(True, None, None, error)
    if code == _TOO_LARGE:
        return Verified(False, report["hbm_per_chip_gib"], None)
    _, found, _ = _command(["predict", *arguments])
    timed = found is not None and found["method"] == "compiled"
    return Verified(True, report["hbm_per_chip_gib"], found["step_seconds"] if found and timed else None)


def _command(arguments: Sequence[str]) -> tuple[int, dict[str, Any] | None, str]:
    """Runs a command that prints JSON; returns its exit code, what it printed, and its last complaint."""
    done = subprocess.run(
        [sys.executable, "-m", "dovetail.cli", *arguments, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    said = f"dovetail {arguments[0]}:"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    named = [line.removeprefix(said).strip() for line in lines if line.startswith(said)]
    return done.returncode, found, (named or lines or [f"exit code {done.returncode}"])[-1]
