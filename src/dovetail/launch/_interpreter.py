# SPDX-License-Identifier: Apache-2.0
"""Finds a Python for a bundle, on a host: `python _interpreter.py CONSTRAINTS PLACE [--as-it-is]` prints its path.

The one that runs this, if it has what CONSTRAINTS lists. Else one of its own is made below PLACE, once for each list of
constraints, by pip; with `--as-it-is`, what is missing is an error, and other versions are said. Run as a file, before
Dovetail is there: it needs nothing but Python 3.11, and says so to an older one.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    print(f"launch: {sys.executable} is Python {sys.version.split()[0]}, expected 3.11 or newer", file=sys.stderr)
    sys.exit(2)

import fcntl
import hashlib
import subprocess
from importlib import metadata
from pathlib import Path


def lacking(constraints: list[str]) -> tuple[list[str], list[str]]:
    """Returns what is not installed, and what is in another version."""
    missing: list[str] = []
    others: list[str] = []
    for line in constraints:
        name, _, version = line.partition("==")
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(line)
            continue
        if found != version:
            others.append(f"{line} (here {found})")
    return missing, others


def made(constraints: Path, place: Path) -> Path:
    """Returns a Python with what is listed, made if it is not there. Two that come at once make one."""
    about = hashlib.sha256(constraints.read_bytes() + sys.version.encode()).hexdigest()[:16]
    directory = place / f"venv-{about}"
    place.mkdir(parents=True, exist_ok=True)
    with (place / f".venv-{about}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python, done = directory / "bin" / "python", directory / "complete"
        if not done.exists():
            print(f"launch: making {directory}, once on this host", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True, stdout=sys.stderr)
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*install, "-r", str(constraints)], check=True, stdout=sys.stderr)
            done.touch()
    return python


def main(arguments: list[str]) -> int:
    """Prints the path of a Python."""
    constraints, place, *options = arguments
    missing, others = lacking(Path(constraints).read_text("utf-8").split())
    if "--as-it-is" in options:
        if others:
            print(f"launch: {sys.executable} has other versions: {', '.join(others)}", file=sys.stderr)
        if missing:
            print(f"launch: {sys.executable} does not have {', '.join(missing)}", file=sys.stderr)
            return 2
    elif missing or others:
        try:
            print(made(Path(constraints), Path(place)))
        except (subprocess.CalledProcessError, OSError) as e:
            print(f"launch: no Python could be made for the job: {e}", file=sys.stderr)
            return 2
        return 0
    print(sys.executable)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
