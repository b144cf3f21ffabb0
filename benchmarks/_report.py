# SPDX-License-Identifier: Apache-2.0
"""What every benchmark needs: the machine and versions it ran on, interleaved timing, and a table."""

import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from dovetail.progress import phase, showing

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # For `support`, the networks the tests use.

_EVERY = 1.0  # Seconds: a line of progress must not disturb what is measured.
_QUIET = ("-q", "--quiet")
_T = TypeVar("_T")


def program(main: Callable[[], _T]) -> _T:
    """Runs a benchmark, which says on standard error how far it is; with `-q` it does not."""
    silent = any(word in _QUIET for word in sys.argv[1:])
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in _QUIET]
    with showing(silent=silent, every=_EVERY):
        return main()


def counted(name: str, items: Iterable[_T], unit: str = "rounds") -> Iterator[_T]:
    """Yields items, and says how many have been."""
    listed = list(items)
    with phase(name, len(listed), unit=unit) as at:
        for item in listed:
            yield item
            at.advance()


def header(title: str, packages: Iterable[str] = ("dovetail", "jax")) -> None:
    """Prints what was measured, when, on what."""
    cpus = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    print(f"# {title}")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {cpus[0] if cpus else platform.machine()}, {os.cpu_count()} cores, ", end="")
    print(f"{platform.system()}, Python {platform.python_version()}, {versions}\n")


def medians(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the median seconds of each, all of them timed in turn in every round: noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in counted("timing", range(rounds)):
        for name, function in functions.items():
            gc.collect()
            gc.disable()  # As timeit does: what a collection costs depends on everything else in memory.
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
            gc.enable()
    return {name: statistics.median(values) for name, values in times.items()}


def table(columns: tuple[str, ...], rows: Iterable[Iterable[object]]) -> None:
    """Prints a Markdown table."""
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print()


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
