# SPDX-License-Identifier: Apache-2.0
"""A real `dovetail board`, as a process, for tests in a browser."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def board(directory: Path) -> Iterator[str]:
    """Yields the address of a board over the runs in a directory."""
    command = [sys.executable, "-m", "dovetail.cli", "board", str(directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line, f"the board has said {line!r}"
        yield line[line.index("http") :].strip()
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def export(directory: Path, file: Path, *runs: str) -> None:
    """Writes the export of runs."""
    command = [sys.executable, "-m", "dovetail.cli", "board", str(directory), *runs, "--export", str(file)]
    subprocess.run(command, check=True, capture_output=True)
