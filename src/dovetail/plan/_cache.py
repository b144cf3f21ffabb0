# SPDX-License-Identifier: Apache-2.0
"""Reports of compilations, kept so that the same question is answered at once."""

import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path

import dovetail
from dovetail.config import to_text
from dovetail.train import Trainer

from ._report import Report


def key(program: str, cfg: Trainer.Config, hardware: str, versions: dict[str, str]) -> str:
    """Returns what a report depends on, as a name: program, config, hardware, versions, and the source of dovetail.

    The program that goes to the compiler says what layers compute, wherever their code is: in dovetail, or with a user.
    """
    parts = (program, to_text(cfg), hardware, json.dumps(versions, sort_keys=True), _source())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def load(name: str) -> Report | None:
    """Returns the report of that name, if there is one that can be read."""
    try:
        return Report(**json.loads((_directory() / f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def store(name: str, report: Report) -> None:
    """Keeps a report. Where nothing can be written, it is not kept."""
    try:
        _directory().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=_directory(), delete=False, encoding="utf-8") as file:
            json.dump(report._asdict(), file)
        os.replace(file.name, _directory() / f"{name}.json")
    except OSError:
        return


def _directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dovetail" / "compile"


@functools.cache
def _source() -> str:
    """Returns a fingerprint of the package: its code makes the report."""
    root = Path(dovetail.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
