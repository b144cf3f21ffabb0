# SPDX-License-Identifier: Apache-2.0
"""Golden configs: the canonical text of every recipe, kept so that a change of one is seen in review.

`python tools/golden.py` rewrites `tests/zoo/golden`. A file holds a family: the first recipe in full, then for each
other recipe the lines that it has not (-) and that it has instead (+). To keep the files small, what is still REQUIRED
is left out, and a part that is equal to an earlier one is written as such.
"""

import sys
from pathlib import Path

from dovetail.config import REQUIRED, ConfigBase, find, to_text
from dovetail.zoo import RECIPES, recipe

DIRECTORY = Path(__file__).resolve().parents[1] / "tests" / "zoo" / "golden"


def golden() -> dict[str, str]:
    """Returns the content of each file, by the name of its family."""
    names: dict[str, list[str]] = {}
    for name, entry in RECIPES.items():
        names.setdefault(entry.family, []).append(name)
    return {family: _family(*of_family) for family, of_family in names.items()}


def _family(first: str, *others: str) -> str:
    full = short_text(recipe(first))
    sections = [[f"# {first}", *full]]
    for name in others:
        lines = short_text(recipe(name))
        gone = [f"- {line}" for line in full if line not in lines]
        sections.append([f"# {name}, against {first}", *gone, *(f"+ {line}" for line in lines if line not in full)])
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def short_text(cfg: ConfigBase) -> list[str]:
    """Returns the lines of `to_text`, with `path as other` for a part that is equal to another one before it."""
    places: dict[ConfigBase, str] = {}
    copies: dict[str, str] = {}
    for path, part in find(cfg, ConfigBase):
        if any(path.startswith(f"{copy}.") for copy in copies):
            continue
        if part in places and to_text(part).count("\n") > 2:
            copies[path] = places[part]
        places.setdefault(part, path)
    lines: list[str] = []
    for line in to_text(cfg).splitlines():
        path, _, value = line.partition(" = ")
        if path in copies:
            lines.append(f"{path} as {copies[path]}")
        elif value != repr(REQUIRED) and not any(path.startswith(f"{copy}.") for copy in copies):
            lines.append(line)
    return lines


def main() -> int:
    """Rewrites all files."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for file in DIRECTORY.glob("*.txt"):
        file.unlink()
    for family, text in golden().items():
        (DIRECTORY / f"{family}.txt").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
