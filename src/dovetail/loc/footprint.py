# SPDX-License-Identifier: Apache-2.0
"""Footprint: the lines of code that mention a feature outside its home, in any repository of Python code.

A line counts if it is code (see `dovetail.loc.meter`) and one of the feature's patterns is found in it. Names in
strings count, those in comments and docstrings do not. What the home of a feature is, its description says.
"""

import ast
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dovetail.config import ConfigError

from .description import Description, Feature, matches
from .meter import code_lines


@dataclass(frozen=True)
class Mention:
    """A line that mentions a feature outside its home."""

    path: str  # From the root of the repository.
    line: int
    text: str
    uses: bool  # It is in a file that chooses features, as recipes do.

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Footprint:
    """What a feature costs outside its home."""

    feature: Feature
    home_lines: int  # Of code, whether they mention it or not.
    mentions: tuple[Mention, ...]
    modifier: tuple[Mention, ...] = ()  # All lines of the definition that applies it.

    @cached_property
    def per_file(self) -> Counter[str]:
        """How many lines mention it in each file, most first."""
        return Counter(dict(Counter(mention.path for mention in self.mentions).most_common()))

    @cached_property
    def counted(self) -> tuple[Mention, ...]:
        """The mentions that the budget is for: those of the system, not of its users."""
        return tuple(mention for mention in self.mentions if not mention.uses)

    @property
    def exceeds(self) -> bool:
        """Whether there are more mentions than the budget allows."""
        return self.feature.budget is not None and len(self.counted) > self.feature.budget

    @property
    def modifier_exceeds(self) -> bool:
        """Whether applying it takes more lines than the budget allows."""
        budget = self.feature.modifier_budget
        return budget is not None and len(self.modifier) > budget


@dataclass(frozen=True)
class Survey:
    """The footprints of some features in a repository."""

    description: Description
    files: int
    lines: int  # Of code, in all files.
    footprints: tuple[Footprint, ...]
    unread: tuple[str, ...]  # Files that are not Python of this version.


def survey(repo: Path, description: Description, features: Sequence[str] = ()) -> Survey:
    """Measures some features, by default all, in the repository at `repo`."""
    description = description.located(repo)
    chosen = description.select(features)
    sources = dict(_sources(repo, description))
    if not sources:
        raise ConfigError(f"{repo}: no Python file in {', '.join(description.source)}, so there is nothing to measure.")
    code: dict[str, dict[int, str]] = {}
    unread: list[str] = []
    for path, source in sources.items():
        try:
            code[path] = code_lines(source)
        except SyntaxError:
            unread.append(path)
    found = tuple(
        replace(_footprint(feature, sources, code, description), modifier=_modifier(repo, feature))
        for feature in chosen
    )
    return Survey(description, len(code), sum(map(len, code.values())), found, tuple(unread))


def _footprint(
    feature: Feature, sources: dict[str, str], code: dict[str, dict[int, str]], description: Description
) -> Footprint:
    home_lines, mentions = 0, list[Mention]()
    _expect_homes(feature, code)
    for path, lines in code.items():
        home = _home(feature, path, sources[path])
        for number, text in lines.items():
            if home is None or number in home:
                home_lines += 1
            elif feature.mentions.search(text):
                mentions.append(Mention(path, number, text.strip(), matches(path, description.uses)))
    return Footprint(feature, home_lines, tuple(mentions))


def _modifier(repo: Path, feature: Feature) -> tuple[Mention, ...]:
    """Returns the lines of the definition that applies a feature."""
    path, _, name = feature.modifier.partition("::")
    if not path:
        return ()
    source = _text(repo / path) if (repo / path).is_file() else ""
    inside = _definitions(source, [name])
    if not inside:
        raise ConfigError(
            f"feature {feature.name!r}: its modifier {feature.modifier!r} is not there. Correct the description."
        )
    return tuple(Mention(path, n, text.strip(), False) for n, text in code_lines(source).items() if n in inside)


def _expect_homes(feature: Feature, code: dict[str, dict[int, str]]) -> None:
    """A home that is not there would make every line of it a mention elsewhere, or hide that it has moved."""
    for pattern in feature.home:
        if not any(matches(path, [pattern.partition("::")[0]]) for path in code):
            raise ConfigError(f"feature {feature.name!r}: its home {pattern!r} is not there. Correct the description.")


def _home(feature: Feature, path: str, source: str) -> set[int] | None:
    """Returns the lines of a file that are the feature's home; None: all of them."""
    here = [pattern.partition("::")[2] for pattern in feature.home if matches(path, [pattern.partition("::")[0]])]
    if "" in here:
        return None
    return _definitions(source, here) if here else set()


def _definitions(source: str, names: Sequence[str]) -> set[int]:
    """Returns the lines of the definitions of these names at the top level of a file."""
    inside: set[int] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and matches(node.name, names):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            inside.update(range(first, (node.end_lineno or first) + 1))
    return inside


def _sources(repo: Path, description: Description) -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each file that is measured."""
    for root in description.source:
        for file in sorted((repo / root).rglob("*.py")):
            path = file.relative_to(repo).as_posix()
            if not matches(path, description.skip):
                yield path, _text(file)


def _text(file: Path) -> str:
    try:
        with tokenize.open(file) as f:
            return f.read()
    except (SyntaxError, UnicodeError):
        return "\0"  # No Python: it is listed as unread.
