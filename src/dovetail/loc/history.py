# SPDX-License-Identifier: Apache-2.0
"""History: the files and lines that real commits needed, at the home of a feature and elsewhere, as git has them.

Lines are those that git counts, comments too. A commit may do several things, so the lines of code that it added
elsewhere and that mention the feature are counted apart. Only files that the description measures count: no tests,
documents or data.
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.config import ConfigError

from .description import Description, Feature, matches
from .meter import code_lines


@dataclass(frozen=True)
class Change:
    """What a commit did to one file."""

    path: str
    added: int
    removed: int
    home: bool
    mentions: int  # Added lines of code that mention the feature.


@dataclass(frozen=True)
class Commit:
    """A commit, and what it did to the source."""

    name: str
    date: str
    subject: str
    changes: tuple[Change, ...]

    def count(self, *, home: bool) -> tuple[int, int, int]:
        """Returns files, added and removed lines, at the home of the feature or elsewhere."""
        some = [change for change in self.changes if change.home == home]
        return len(some), sum(change.added for change in some), sum(change.removed for change in some)

    @property
    def mentions(self) -> int:
        """How many lines of code it added that mention the feature away from its home."""
        return sum(change.mentions for change in self.changes if not change.home)


def history(repo: Path, description: Description, feature: Feature, revisions: Sequence[str] = ()) -> list[Commit]:
    """Returns the commits that changed the home of a feature, the newest first; or these, if some are named."""
    if _git(repo, "rev-parse", "--is-inside-work-tree").returncode:
        raise ConfigError(f"{repo}: not in a git repository, so there is no history.")
    homes = [f":(glob){pattern.partition('::')[0].replace('*', '**')}" for pattern in feature.home]
    if revisions:
        names = [_read(repo, "rev-parse", "--verify", f"{name}^{{commit}}").strip() for name in revisions]
    else:
        names = _read(repo, "log", "--format=%H", "--no-merges", "--", *homes).split()
    if not names:
        raise ConfigError(f"{repo}: no commit has changed the home of {feature.name!r}: {', '.join(feature.home)}.")
    return [_commit(repo, description, feature, name) for name in names]


def _commit(repo: Path, description: Description, feature: Feature, name: str) -> Commit:
    text = _read(repo, "show", "--unified=0", "--no-renames", "--no-color", "--format=%h%x00%as%x00%s", name)
    head, _, rest = text.partition("\n")
    changes: list[Change] = []
    for part in re.split(r"^diff --git ", rest, flags=re.MULTILINE)[1:]:
        path = _path(part)
        inside = path.startswith(tuple(f"{root.rstrip('/')}/" for root in description.source))
        if inside and path.endswith(".py") and not matches(path, description.skip):
            changes.append(_change(repo, feature, name, path, part))
    short, date, subject = head.split("\0", 2)
    return Commit(short, date, subject, tuple(changes))


def _path(part: str) -> str:
    """Returns the file that a part of a diff is about, by its name after the commit, or before if it is gone."""
    named = re.findall(r"^(?:---|\+\+\+) [ab]/(.*?)\t?$", part, re.MULTILINE)
    return named[-1] if named else ""


def _change(repo: Path, feature: Feature, name: str, path: str, part: str) -> Change:
    added = dict(_added(part))
    removed = sum(int(count or 1) for count in re.findall(r"^@@ -\d+(?:,(\d+))? \+", part, re.MULTILINE))
    home = matches(path, [pattern.partition("::")[0] for pattern in feature.home])
    mentions = 0
    if any(feature.mentions.search(text) for text in added.values()):
        try:
            code = code_lines(_read(repo, "show", f"{name}:{path}"))
        except SyntaxError:  # Python of another version: its lines count as they are.
            code = added
        mentions = sum(number in added and bool(feature.mentions.search(text)) for number, text in code.items())
    return Change(path, len(added), removed, home, mentions)


def _added(part: str) -> Iterator[tuple[int, str]]:
    """Yields the added lines of a part of a diff, with their numbers."""
    number, started = 0, False
    for line in part.split("\n"):
        if hunk := re.match(r"@@ -\S+ \+(\d+)", line):
            number, started = int(hunk[1]), True
        elif started and line.startswith("+"):
            yield number, line[1:]
            number += 1


def _read(repo: Path, *args: str) -> str:
    done = _git(repo, *args)
    if done.returncode:
        raise ConfigError(f"{repo}: git {args[0]} failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def _git(repo: Path, *args: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", "-C", str(repo), *args], capture_output=True, text=True)
    except FileNotFoundError as e:
        raise ConfigError("git is not installed, so there is no history.") from e
