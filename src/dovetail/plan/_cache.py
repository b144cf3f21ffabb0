# SPDX-License-Identifier: Apache-2.0
"""What compilers made, kept so that nothing is compiled twice: whoever asks about a program reads the same text."""

import gzip
import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from dovetail.aot import Buffer, Compilation, Memory

_FORMAT = 2  # Of what is kept. What an older dovetail kept is compiled again.
_SCOPES = re.compile(r'loc\("([^"]*)"')


def key(lowered: Any, options: Any, where: Any, versions: dict[str, str]) -> str:
    """Returns what a compilation depends on, as a name.

    The program that goes to the compiler says what layers compute, wherever their code is: in dovetail, or with a user.
    The scopes that it is traced in are part of the text that comes out.

    Args:
        lowered: the program, a `jax.stages.Lowered`.
        options: of the compiler.
        where: hardware, and the order of its devices.
        versions: of all that has a part in it.
    """
    scopes = sorted(set(_SCOPES.findall(lowered.as_text(debug_info=True))))
    parts = (lowered.as_text(), *scopes, *(json.dumps(part, sort_keys=True) for part in (options, where, versions)))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def load(name: str) -> Compilation | None:
    """Returns the compilation of that name, if there is one that can be read."""
    try:
        with gzip.open(_path(name), "rt", encoding="utf-8") as file:
            found = json.load(file)
        if found.pop("format") != _FORMAT:
            return None
        memory = found.pop("memory")
        live = [Buffer(tuple(names), size) for names, size in memory.pop("live")]
        return Compilation(memory=Memory(**memory, live=live), **found)
    except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError):
        return None


def store(name: str, found: Compilation) -> None:
    """Keeps a compilation. Where nothing can be written, it is not kept."""
    kept = {**found._asdict(), "memory": found.memory._asdict(), "format": _FORMAT}
    try:
        _path(name).parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=_path(name).parent, delete=False) as file:
            file.write(gzip.compress(json.dumps(kept).encode()))
        os.replace(file.name, _path(name))
    except OSError:
        return


def _path(name: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dovetail" / "compile" / f"{name}.json.gz"
