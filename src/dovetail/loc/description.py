# SPDX-License-Identifier: Apache-2.0
"""Features as data: where each has its home in a repository, and what a line that mentions it looks like.

A description is a TOML file. Those of this repository and of some others are in `descriptions/`:

    name = "Example"
    commit = "1a2b3c4"                 # optional: where the figures in `recorded` were taken
    roots = ["src", "."]               # optional: where all paths below start, the first that is there; else "."
    source = ["example"]               # directories that are read
    skip = ["*_test.py"]               # but not these files
    uses = ["example/zoo/*"]           # optional: files that choose features, as recipes do; no budget counts them

    [features.rope]
    home = ["example/rope.py", "example/attention.py::Rotary*"]   # files, or definitions at the top level of a file
    mentions = ["RoPE|rotary"]         # regular expressions, searched in each line of code
    budget = 12                        # optional: lines that may mention it, outside its home and `uses`
    modifier = "example/zoo/kinds.py::with_rope"   # optional: the definition that applies it to every model
    modifier_budget = 10               # optional: lines that this may have
    recorded = { files = 3, lines = 40 }   # optional: what was found at `commit`

`*` in a path stands for any characters, slashes included.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError, did_you_mean

_SHIPPED = Path(__file__).parent / "descriptions"


@dataclass(frozen=True)
class Feature:
    """One feature of a repository."""

    name: str
    home: tuple[str, ...]
    mentions: re.Pattern[str]
    budget: int | None = None
    modifier: str = ""
    modifier_budget: int | None = None
    recorded: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """A repository and its features."""

    name: str
    source: tuple[str, ...]
    features: Mapping[str, Feature]
    skip: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    roots: tuple[str, ...] = (".",)
    commit: str = ""

    def select(self, names: Sequence[str]) -> list[Feature]:
        """Returns these features, by default all; raises if there is none of that name."""
        for name in names:
            if name not in self.features:
                hint = did_you_mean(name, self.features) or f" There are: {', '.join(self.features)}."
                raise ConfigError(f"{self.name} has no feature {name!r}.{hint}")
        return [self.features[name] for name in names or self.features]

    def fits(self, repo: Path) -> bool:
        """Whether the repository has its source, under one of the roots."""
        return self._root(repo) is not None

    def located(self, repo: Path) -> "Description":
        """Returns it with all paths from the top of the repository; raises if the source is not there."""
        root = self._root(repo)
        if root is None:
            missing = (Path(self.roots[0]) / self.source[0]).as_posix()
            raise ConfigError(f"{repo}: not a checkout of {self.name}: there is no directory {missing!r}.")
        if root == ".":
            return self

        def below(patterns: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(each if each.startswith("*") or not each else f"{root}/{each}" for each in patterns)

        def moved(feature: Feature) -> Feature:
            return replace(feature, home=below(feature.home), modifier="".join(below((feature.modifier,))))

        features = {name: moved(each) for name, each in self.features.items()}
        paths = {name: below(getattr(self, name)) for name in ("source", "skip", "uses")}
        return replace(self, features=features, roots=(".",), **paths)

    def _root(self, repo: Path) -> str | None:
        there = (root for root in self.roots if all((repo / root / source).is_dir() for source in self.source))
        return next(there, None)


def shipped() -> list[str]:
    """Returns the names of the descriptions that come with dovetail."""
    return sorted(file.stem for file in _SHIPPED.glob("*.toml"))


def load(name: str) -> Description:
    """Returns the description of that name, or in that file if the name ends in `.toml`."""
    file = Path(name) if name.endswith(".toml") else _SHIPPED / f"{name}.toml"
    if not file.is_file():
        hint = did_you_mean(name, shipped()) or f" There are: {', '.join(shipped())}; or name a .toml file."
        raise ConfigError(f"there is no description {name!r}.{hint}")
    try:
        return _parsed(tomllib.loads(file.read_text("utf-8")))
    except (tomllib.TOMLDecodeError, TypeError, KeyError, re.error) as e:
        raise ConfigError(f"{file}: cannot be read as a description of features: {e!r}") from e


def describe(repo: Path) -> Description:
    """Returns the shipped description whose source directories the repository has; raises if none or several fit."""
    known = [load(name) for name in shipped()]
    found = [each for each in known if each.fits(repo)]
    if len(found) != 1:
        why = f"{' and '.join(each.name for each in found)} fit" if found else "none fits"
        raise ConfigError(f"{repo}: of the descriptions {', '.join(shipped())}, {why}. Name one with --description.")
    return found[0]


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path is one of those that the patterns name."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _parsed(table: dict[str, Any]) -> Description:
    features = {name: _feature(name, **fields) for name, fields in table.pop("features").items()}
    lists = {name: tuple(table.pop(name)) for name in ("source", "skip", "uses", "roots") if name in table}
    return Description(features=features, **lists, **table)


def _feature(name: str, *, home: list[str], mentions: list[str], **fields: Any) -> Feature:
    return Feature(name, tuple(home), re.compile("|".join(mentions)), **fields)
