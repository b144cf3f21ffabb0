# SPDX-License-Identifier: Apache-2.0
"""The directory of a run: `step_4000` is a finished step, `step_4000.NAME.tmp` one in the making.

A step gets its name when all of it is on disk, and loses it before any of it is deleted, so what has the name is whole.
"""

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from dovetail.config import ConfigError

_STEP = re.compile(r"step_(0|[1-9]\d*)\Z")
_OURS = re.compile(r"step_\d+((\.\w+)?\.tmp|\.deleted|\.corrupt(-\d+)?)?\Z")
_SHOWN = 5


def step_path(directory: Path, step: int) -> Path:
    """Returns the directory of a finished step."""
    return directory / f"step_{step}"


def temporary_path(directory: Path, step: int, attempt: str) -> Path:
    """Returns the directory in which a step is made; one that was killed, or stopped, may have another of that step."""
    return directory / f"step_{step}.{attempt}.tmp"


def finished_steps(directory: Path) -> list[int]:
    """Returns the finished steps, oldest first; none if there is no such directory (which `prepare` finds out)."""
    try:
        with os.scandir(directory) as entries:
            found = [_STEP.match(entry.name) for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise ConfigError(f"checkpoint directory {directory} cannot be read: {e.strerror}.") from e
    return sorted(int(match[1]) for match in found if match)


def reach(directory: Path) -> None:
    """Makes the directory. One with something else in it and not one step is taken for a mistake."""
    with _telling(directory):
        directory.mkdir(parents=True, exist_ok=True)
        names = sorted(os.listdir(directory))
        foreign = [name for name in names if not name.startswith(".") and not _OURS.match(name)]
        if foreign and not any(map(_STEP.match, names)):
            shown = ", ".join(map(repr, foreign[:_SHOWN])) + (", ..." if len(foreign) > _SHOWN else "")
            raise ConfigError(
                f"checkpoint directory {directory} holds something else: {shown}.\n"
                f"  Use a new or an empty directory. Nothing was written."
            )


def prepare(directory: Path) -> None:
    """Proves that the directory can be written, and removes what broken saves have left in it."""
    reach(directory)
    with _telling(directory):
        for name in os.listdir(directory):
            if _OURS.match(name) and name.endswith((".tmp", ".deleted")):
                shutil.rmtree(directory / name)
        probe = temporary_path(directory, 0, "probe")
        probe.mkdir()
        probe.rmdir()


@contextlib.contextmanager
def _telling(directory: Path) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError) as e:
        raise ConfigError(f"checkpoint directory {directory} cannot be made: {e.filename} is not a directory.") from e
    except OSError as e:
        raise ConfigError(f"checkpoint directory {directory} cannot be written: {e.strerror} ({e.filename}).") from e


def discard(path: Path) -> None:
    """Deletes a step, its name first."""
    doomed = path.with_name(path.name + ".deleted")
    path.rename(doomed)
    shutil.rmtree(doomed)


def set_aside(path: Path) -> None:
    """Renames a damaged step, so that its name can be used again and its files can be examined."""
    names = itertools.chain([".corrupt"], (f".corrupt-{n}" for n in itertools.count(2)))
    path.rename(next(free for name in names if not (free := path.with_name(path.name + name)).exists()))
