# SPDX-License-Identifier: Apache-2.0
"""Builds the pages and the reference of the API as a site that works without a network: `make site`.

Pages are those that GitHub shows. They are copied as they lie, so that their links hold, the README as the home page;
what they link to beside pages comes along. Then every link of what was built is followed, and nothing may be loaded
from elsewhere.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "site"
_LINK = re.compile(r"(\]\()([^)#\s]*)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^ *```")

# What a reader wants to do, and the pages for it.
GROUPS = {
    "Start": ("start", "own-text", "coming-from"),
    "Train": ("training", "data", "rows", "zoo", "hugging-face", "checkpoints", "bad-steps", "sweeps"),
    "See": ("board", "pictures", "goodput"),
    "Scale": ("parallel", "hardware", "plan", "foresight", "predict-compiled"),
    "Launch": ("launch", "launch-slurm", "launch-kubernetes", "schedule"),
    "Serve": ("serving", "compile-serving"),
    "Understand": ("architecture", "config", "modules", "loc-complexity", "features-in-ten-lines", "examples"),
}
_DEVELOP = ("CONTRIBUTING", "CHANGELOG", "docs/dependencies", "benchmarks/results/index", "api/index")
_LEFT_OUT = ("cli",)  # Of the API: it is used by commands.


def pages() -> list[Path]:
    """Returns the Markdown pages of the site, as they lie in the project."""
    tops = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*tops, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "benchmarks" / "results").glob("*.md"))]


def stage(source: Path) -> None:
    """Writes what Sphinx reads."""
    lists: set[Path] = {ROOT / "benchmarks" / "results"}
    for page in pages():
        text = _relinked(page, source, lists)
        name = Path("index.md") if page.name == "README.md" else page.relative_to(ROOT)
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + (_contents() if name.name == "index.md" else ""), "utf-8")
    for directory in sorted(lists):
        _list(directory, source)
    _reference(source / "api")
    shutil.copy(Path(__file__).with_name("conf.py"), source / "conf.py")


def _relinked(page: Path, source: Path, lists: set[Path]) -> str:
    """Returns a page with links that hold on the site: to the home page, and to lists of directories."""
    lines, in_code = [], False
    for line in page.read_text("utf-8").splitlines():
        in_code ^= bool(_FENCE.match(line))
        lines.append(line if in_code else _LINK.sub(lambda m: _link(m, page, source, lists), line))
    return "\n".join(lines) + "\n"


def _link(match: re.Match[str], page: Path, source: Path, lists: set[Path]) -> str:
    target = match[2]
    if not target or "://" in target or target.startswith("mailto:"):
        return match[0]
    place = (page.parent / unquote(target)).resolve()
    if not place.exists() or not place.is_relative_to(ROOT):
        return match[0]  # Sphinx says that it is not there.
    if place.is_dir():
        lists.add(place)
        return f"{match[1]}{target.rstrip('/')}/index.md{match[3]}"
    if place == ROOT / "README.md":
        return f"{match[1]}{target.removesuffix('README.md')}index.md{match[3]}"
    if place not in pages():
        copy = source / place.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(place, copy)
    return match[0]


def _contents() -> str:
    """Returns the groups of pages, for the side of the site."""
    groups = {group: [f"docs/{name}" for name in names] for group, names in GROUPS.items()}
    groups["Develop"] = list(_DEVELOP)
    blocks = [
        "\n".join(["", "```{toctree}", ":hidden:", f":caption: {group}", "", *names, "```"])
        for group, names in groups.items()
    ]
    return "\n".join(blocks) + "\n"


def _list(directory: Path, source: Path) -> None:
    """Writes a page that lists a directory, whose files come along."""
    target = source / directory.relative_to(ROOT)
    target.mkdir(parents=True, exist_ok=True)
    known, lines = pages(), list[str]()
    inner = [file for file in sorted(directory.iterdir()) if file in known]
    for file in sorted(directory.iterdir()):
        if file.is_file() and file not in known and not file.name.startswith("_"):
            shutil.copy(file, target / file.name)
            lines.append(f"- [{file.name}]({file.name})")
    title = str(directory.relative_to(ROOT))
    tree = ["```{toctree}", ":maxdepth: 1", "", *(file.stem for file in inner), "```", ""] if inner else []
    head = ["---", "orphan: true", "---", ""] if not inner else []
    (target / "index.md").write_text("\n".join([*head, f"# {title}", "", *tree, *lines, ""]), "utf-8")


def _reference(directory: Path) -> None:
    """Writes a page for each package, with the names that it exports."""
    directory.mkdir(parents=True, exist_ok=True)
    src = ROOT / "src" / "dovetail"
    found: list[str] = []
    for init in sorted(src.rglob("__init__.py")):
        package = ".".join(init.parent.relative_to(ROOT / "src").parts)
        names = sorted(exported(init), key=str.lower)
        if not names or package == "dovetail" or package.split(".")[1] in _LEFT_OUT:
            continue
        found.append(package)
        entries = [_entry(package, name) for name in names]
        about = (ast.get_docstring(ast.parse(init.read_text("utf-8"))) or "").replace("`", "``")
        text = "\n\n".join([f"{package}\n{'=' * len(package)}", about, f".. currentmodule:: {package}", *entries])
        (directory / f"{package}.rst").write_text(text + "\n", "utf-8")
    about = "What can be imported, by package. Each name has one import path."
    tree = "\n".join(f"   {package}" for package in found)
    (directory / "index.rst").write_text(f"API\n===\n\n{about}\n\n.. toctree::\n   :maxdepth: 1\n\n{tree}\n", "utf-8")


def _entry(package: str, name: str) -> str:
    if name.isupper():
        return f".. autodata:: {package}.{name}\n   :no-value:"
    kind = "class" if name[:1].isupper() else "function"
    return f".. auto{kind}:: {package}.{name}"


def exported(init: Path) -> Iterator[str]:
    """Yields the names that a package offers."""
    for node in ast.parse(init.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from (alias.asname for alias in node.names if alias.asname and alias.asname == alias.name)


class _Links(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.links, self.loads = set[str](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag == "a" and (href := found.get("href")):
            self.links.append(href)
        if tag in ("script", "img", "iframe", "source") and (src := found.get("src")):
            self.loads.append(src)
        if tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon", "preconnect") and found.get("href"):
            self.loads.append(str(found["href"]))


def problems(site: Path) -> list[str]:
    """Returns links that lead nowhere, and what is loaded from elsewhere."""
    read: dict[Path, _Links] = {}

    def links_of(page: Path) -> _Links:
        if page not in read:
            read[page] = _Links()
            read[page].feed(page.read_text("utf-8"))
        return read[page]

    found: list[str] = []
    for page in sorted(site.rglob("*.html")):
        name, links = page.relative_to(site), links_of(page)
        found += [f"{name}: loads {each}" for each in links.loads if re.match(r"(https?:)?//", each)]
        for link in [*links.links, *(each for each in links.loads if "//" not in each)]:
            path, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", path):
                continue
            place = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            if not place.exists():
                found.append(f"{name}: {link} is not there")
            elif anchor and place.suffix == ".html" and unquote(anchor) not in links_of(place).ids:
                found.append(f"{name}: {link} has no such anchor")
    for style in sorted(site.rglob("*.css")):
        outer = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", style.read_text("utf-8", "replace"))
        found += [f"{style.relative_to(site)}: loads {each}" for each in outer]
    return found


def main() -> int:
    """Builds and checks; returns the exit code."""
    work = ROOT / ".venv" / "site-work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(OUT, ignore_errors=True)
    stage(work / "source")
    command = [
        str(ROOT / ".venv" / "site" / "bin" / "python"),
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
    ]
    done = subprocess.run(
        [*command, "-d", str(work / "doctrees"), str(work / "source"), str(OUT)],
        env={**os.environ, "DOVETAIL_ROOT": str(ROOT)},
        check=False,
    )
    found = problems(OUT) if OUT.is_dir() else ["nothing was built"]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    if not (done.returncode or found):
        print(f"Open {OUT / 'index.html'}: it needs no server and no network.")
    return 1 if done.returncode or found else 0


if __name__ == "__main__":
    sys.exit(main())
