# SPDX-License-Identifier: Apache-2.0
"""The site: every page has a place in it, links hold where pages lie, and what leads nowhere or elsewhere is found."""

import importlib.util
import re

import pytest

import run_docs

_FILE = run_docs.ROOT / "tools" / "web" / "build.py"
_SPEC = importlib.util.spec_from_file_location("site_build", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
build = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(build)


def test_every_page_below_docs_is_in_one_group():
    grouped = [name for names in build.GROUPS.values() for name in names]
    developing = [name.removeprefix("docs/") for name in build._DEVELOP if name.startswith("docs/")]
    there = [page.stem for page in (run_docs.ROOT / "docs").glob("*.md")]
    assert sorted([*grouped, *developing]) == sorted(there)


def test_what_is_staged_has_the_readme_as_home_lists_of_directories_and_every_exported_name(tmp_path):
    build.stage(tmp_path)
    home = (tmp_path / "index.md").read_text()
    assert home.startswith("# Dovetail\n")
    assert "benchmarks/results/index.md" in home
    assert (tmp_path / "benchmarks" / "results" / "index.md").is_file()
    assert (tmp_path / "LICENSE").is_file()
    text = (tmp_path / "api" / "dovetail.train.rst").read_text()
    assert ".. autoclass:: dovetail.train.Observer" in text
    for page in tmp_path.rglob("*.md"):
        fence = False
        for line in page.read_text().splitlines():
            fence ^= line.lstrip().startswith("```")
            for target in [] if fence else re.findall(r"\]\(([^)#\s]+)", line):
                assert "://" in target or (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize(
    "html, found",
    [
        ('<a href="other.html#there">x</a>', []),
        ('<a href="https://example.org/">x</a>', []),
        ('<a href="other.html#absent">x</a>', ["index.html: other.html#absent has no such anchor"]),
        ('<a href="absent.html">x</a>', ["index.html: absent.html is not there"]),
        ('<script src="https://cdn.example.org/x.js"></script>', ["index.html: loads https://cdn.example.org/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example.org/f.css">', ["index.html: loads //fonts.example.org/f.css"]),
        ('<img src="absent.svg">', ["index.html: absent.svg is not there"]),
    ],
)
def test_links_that_lead_nowhere_and_what_is_loaded_from_elsewhere_are_found(html, found, tmp_path):
    (tmp_path / "index.html").write_text(html)
    (tmp_path / "other.html").write_text('<h1 id="there">x</h1>')
    assert build.problems(tmp_path) == found


def test_styles_that_load_fonts_from_elsewhere_are_found(tmp_path):
    (tmp_path / "a.css").write_text('@import "https://fonts.example.org/a.css"; b { background: url(b.png) }')
    assert build.problems(tmp_path) == ["a.css: loads https://fonts.example.org/a.css"]
