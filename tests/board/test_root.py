# SPDX-License-Identifier: Apache-2.0
"""Runs are found below a directory, and nothing outside of it is ever opened."""

import os
from pathlib import Path

import pytest

from dovetail.board._root import Root, parts_of, read_at
from dovetail.config import ConfigError
from support.boards import write_run


def test_runs_are_found_at_any_depth_also_below_other_runs_but_not_in_their_parts(tmp_path: Path) -> None:
    for name in ("a", "b/c/d", "a/sweep/lr=1", "a/checkpoints/x", "a/launch/x", ".hidden/x"):
        write_run(tmp_path / name, 1)
    (tmp_path / "launched/launch").mkdir(parents=True)
    (tmp_path / "launched/launch/events.jsonl").touch()
    (tmp_path / "imported/checkpoints").mkdir(parents=True)
    (tmp_path / "no run").mkdir()
    assert Root(tmp_path).find().runs == ["a", "a/sweep/lr=1", "b/c/d", "imported", "launched"]
    assert Root(tmp_path / "b/c/d").find().runs == ["."]


def test_depth_is_bounded_and_that_is_said(tmp_path: Path) -> None:
    write_run(tmp_path.joinpath(*"123456789"), 1)
    write_run(tmp_path.joinpath(*"abcdefgh"), 1)
    found = Root(tmp_path).find()
    assert found.runs == ["a/b/c/d/e/f/g/h"]
    assert found.problems == ["1/2/3/4/5/6/7/8/9: is too deep, and was not looked at."]


def test_links_are_not_followed_and_that_is_said(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    write_run(outside / "secret", 1)
    write_run(root / "own", 1)
    (root / "link").symlink_to(outside)
    (root / "loop").symlink_to(root)
    found = Root(root).find()
    assert found.runs == ["own"]
    assert "2 symbolic links are not followed" in found.problems[0]


def test_a_name_that_is_no_text_hides_no_other(tmp_path: Path) -> None:
    write_run(tmp_path / "own", 1)
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    assert Root(tmp_path).find().runs == ["own"]


HOSTILE = [
    ["..", "secret.txt"],
    ["run", "..", "..", "secret.txt"],
    ["run", "", "metrics.jsonl"],
    [".", "run", "metrics.jsonl"],
    ["/etc/passwd"],
    ["run/../../secret.txt"],
    ["run", "/etc/passwd"],
    ["run", "metrics.jsonl\0"],
    ["run", "link.txt"],
    ["run", "linked", "secret.txt"],
    ["run", "pipe"],
    ["run"],
    ["run", "metrics.jsonl", "x"],
    ["link", "secret.txt"],
    ["run", "%2e%2e", "secret.txt"],
    ["run", "a" * 5000],
]


@pytest.mark.parametrize("parts", HOSTILE, ids=lambda parts: "_".join(parts)[:40].replace("\0", "NUL"))
def test_nothing_but_a_regular_file_below_the_root_is_opened(tmp_path: Path, parts: list[str]) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    root = tmp_path / "root"
    write_run(root / "run", 1)
    (root / "run/link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "run/linked").symlink_to(tmp_path)
    (root / "link").symlink_to(tmp_path)
    os.mkfifo(root / "run/pipe")
    with pytest.raises(OSError, match=r"No such file|Not a (regular file|directory)|Too many levels|too long"):
        Root(root).open(parts)
    with Root(root).directory([]) as here:
        assert read_at(here, parts, 100) is None
        assert read_at(here, ["run", "metrics.jsonl"], 8) == b'{"step":'
        assert read_at(here, ["run", "config.txt"], 4, last=True) == b"100\n"


def test_a_directory_without_rights_is_a_problem_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "closed/b", "c"):
        write_run(tmp_path / name, 1)
    if os.geteuid():
        (tmp_path / "closed").chmod(0)
    else:  # Nothing is closed to who runs this: the system is made to say so.
        whole = Root._inside

        def inside(self: Root, below: str) -> dict[str, str]:
            if below == "closed":
                raise PermissionError(13, "Permission denied")
            return whole(self, below)

        monkeypatch.setattr(Root, "_inside", inside)
    found = Root(tmp_path).find()
    (tmp_path / "closed").chmod(0o700)
    assert (found.runs, found.problems) == (["a", "c"], ["closed: cannot be read: Permission denied."])


def test_the_id_of_a_run_is_its_path() -> None:
    assert (parts_of("."), parts_of("a"), parts_of("a/b")) == ([], ["a"], ["a", "b"])


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"board: there is no directory '.*nowhere'\. Name one with runs in it\."):
        Root(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a directory"):
        Root(tmp_path / "file")
