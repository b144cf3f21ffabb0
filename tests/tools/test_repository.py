# SPDX-License-Identifier: Apache-2.0
"""What is committed is free of machines: no package index, no path of one computer, no lock file; no test is lost."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each pattern is written so that it does not match itself.
INDEX = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|anaconda\.org|file:/{2,3}\w"
    r"|--(?:extra-)?index-url|--find[-]links|PIP_(?:EXTRA_)?INDEX_URL|PIP_FIND[_]LINKS"
)
# What each node of GKE has is of no one machine.
MACHINE = re.compile(rf"(?<![\w.:/-])(?:{re.escape(str(ROOT))}\b|/(?:home|Users)/(?!kubernetes/bin/)\w+/|/root/\w)")
LOCK = re.compile(r".*\.lock|pylock\..*toml|package-lock\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml")
TESTS = Path(__file__).parents[1]
LONG, SLOW = re.compile(r"\bmark[.]long\b"), re.compile(r"\bmark[.]slow\b")

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")


def committed() -> list[str]:
    """Returns the names of the files that are in git, or would be after `git add`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


def findings(pattern: re.Pattern[str]) -> list[str]:
    """Returns `file:line: match` for each match in a committed file."""
    return [
        f"{name}:{number}: {match[0]}"
        for name in committed()
        for number, line in enumerate((ROOT / name).read_text("utf-8", errors="replace").split("\n"), 1)
        for match in pattern.finditer(line)
    ]


@needs_git
def test_no_file_names_a_package_index():
    assert findings(INDEX) == []


@needs_git
def test_no_file_names_a_path_of_one_machine():
    assert findings(MACHINE) == []


@needs_git
def test_there_is_no_lock_file():
    assert [name for name in committed() if LOCK.fullmatch(Path(name).name)] == []


def test_constraints_are_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


@pytest.mark.parametrize("mark, table", [(LONG, "| Only in `make long` and"), (SLOW, "| Only in `make test-all` |")])
def test_what_the_usual_tests_leave_out_is_in_a_table_of_contributing(mark: re.Pattern[str], table: str):
    marked = {str(file.relative_to(ROOT)) for file in TESTS.rglob("*.py") if mark.search(file.read_text("utf-8"))}
    rows = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split(table)[1].split("\n\n")[0]
    assert set(re.findall(r"`(tests/[\w/]+\.py)`", rows)) == marked


@pytest.mark.parametrize(
    "pattern, text",
    [
        (LONG, "@pytest.mark" + ".long"),
        (SLOW, "@pytest.mark" + ".slow"),
        (INDEX, "see https://py" + "pi.org/project/jax"),
        (INDEX, "--extra-" + "index-url x"),
        (INDEX, "file:" + "///mirror/simple"),
        (MACHINE, f"cd {ROOT}/src"),
        (MACHINE, "'/home" + "/someone/dovetail'"),
        (MACHINE, "/root" + "/cache"),
        (LOCK, "uv.lock"),
        (LOCK, "poetry.lock"),
        (LOCK, "package-lock.json"),
    ],
)
def test_patterns_find_what_they_are_for(pattern: re.Pattern[str], text: str):
    assert pattern.search(text)
