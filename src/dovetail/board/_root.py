# SPDX-License-Identifier: Apache-2.0
"""`Root`: a directory and the files below it, never one outside: names are opened one by one, and no link followed."""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.config import ConfigError

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_DEPTH = 8  # Directories below the root in which runs are looked for.
_MOST = 200_000  # Directories that are looked through.
# One of these makes a directory that of a run.
_MARKS = frozenset(("metrics.jsonl", "goodput.jsonl", "config.txt", "checkpoints", "checkpoints.url"))
# Directories in that of a run in which there is no other run.
_PARTS = frozenset(("checkpoints", "configs", "launch", "pictures", "profile", "tensorboard"))


class Found(NamedTuple):
    """The runs below a directory, by id, and sentences about what could not be looked at."""

    runs: list[str]
    problems: list[str]


class Root:
    """A directory. What is below it is named by parts; one that leads out, or is a link, is an OSError."""

    def __init__(self, directory: Path) -> None:
        try:
            self.path = directory.expanduser().resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as e:
            raise ConfigError(f"board: there is no directory {str(directory)!r}. Name one with runs in it.") from e
        if not self.path.is_dir():
            raise ConfigError(f"board: {str(directory)!r} is not a directory. Name one with runs in it.")

    @contextlib.contextmanager
    def directory(self, parts: Sequence[str]) -> Iterator[int]:
        """Yields a descriptor of a directory."""
        here = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                below = os.open(_checked(part), _DIRECTORY, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def open(self, parts: Sequence[str]) -> int:
        """Returns a descriptor to read a regular file."""
        with self.directory(parts[:-1]) as here:
            return open_at(here, parts[-1])

    def find(self) -> Found:
        """Looks for runs."""
        found, problems, links, waiting, seen = list[str](), list[str](), 0, [("", 0)], 0
        while waiting:
            below, depth = waiting.pop()
            seen += 1
            if seen > _MOST:
                problems.append(f"There are more than {_MOST:,} directories: the rest was not looked at.")
                break
            try:
                inside = self._inside(below)
            except OSError as e:
                problems.append(f"{below or '.'}: cannot be read: {e.strerror}.")
                continue
            is_run = not _MARKS.isdisjoint(inside) or self._was_launched(below, inside)
            if is_run:
                found.append(below or ".")
            links += sum(1 for kind in inside.values() if kind == "link")
            for name in sorted(inside, reverse=True):
                if inside[name] == "directory" and not name.startswith(".") and not (is_run and name in _PARTS):
                    if depth < _DEPTH:
                        waiting.append((f"{below}/{name}" if below else name, depth + 1))
                    else:
                        problems.append(f"{below}/{name}: is too deep, and was not looked at.")
        if links:
            problems.append(
                f"{links:,} symbolic links are not followed. To see what one leads to, name that directory."
            )
        return Found(sorted(found), problems)

    def _inside(self, below: str) -> dict[str, str]:
        """Returns what is in a directory, and which of it are directories or links."""
        with self.directory(parts_of(below)) as here, os.scandir(here) as entries:
            return {
                each.name: "link"
                if each.is_symlink()
                else ("directory" if each.is_dir(follow_symlinks=False) else "file")
                for each in entries
                if is_text(each.name)
            }

    def _was_launched(self, below: str, inside: dict[str, str]) -> bool:
        return inside.get("launch") == "directory" and self.exists([*parts_of(below), "launch", "events.jsonl"])

    def exists(self, parts: Sequence[str]) -> bool:
        """Whether there is a regular file of that name."""
        try:
            os.close(self.open(parts))
        except (OSError, ValueError):
            return False
        return True


def parts_of(run: str) -> list[str]:
    """Returns the parts of the path that is the id of a run."""
    return run.split("/") if run and run != "." else []


def is_text(name: str) -> bool:
    """Whether a name is UTF-8: what is not cannot be said in JSON."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked(part: str) -> str:
    """Returns a part of a path that is the name of something in a directory, and nothing else."""
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise FileNotFoundError(2, "No such file or directory")
    return part


def open_at(directory: int, name: str) -> int:
    """Returns a descriptor to read a regular file in a directory."""
    if not stat.S_ISREG(os.stat(_checked(name), dir_fd=directory, follow_symlinks=False).st_mode):
        raise FileNotFoundError(2, "Not a regular file")  # Before it is opened: opening a device may do something.
    descriptor = os.open(name, _FILE, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(2, "Not a regular file")
    return descriptor


def read_at(directory: int, parts: Sequence[str], most: int, *, last: bool = False) -> bytes | None:
    """Returns the first bytes of a file below a directory, or the last ones; None if it cannot be read."""
    opened: list[int] = []
    try:
        for part in parts[:-1]:
            opened.append(os.open(_checked(part), _DIRECTORY, dir_fd=opened[-1] if opened else directory))
        opened.append(open_at(opened[-1] if opened else directory, parts[-1]))
        offset = max(0, os.fstat(opened[-1]).st_size - most) if last else 0
        return read(opened[-1], offset, most)
    except OSError:
        return None
    finally:
        for each in opened:
            os.close(each)


def read(descriptor: int, offset: int, count: int) -> bytes:
    """Returns bytes of a file from an offset on, fewer at its end."""
    found = os.pread(descriptor, count, offset)
    if len(found) == count or not found:
        return found
    pieces, size = [found], len(found)
    while size < count and (more := os.pread(descriptor, count - size, offset + size)):
        pieces.append(more)
        size += len(more)
    return b"".join(pieces)
