# SPDX-License-Identifier: Apache-2.0
"""What names of published models and of new directories tell, before anything is read."""

import os
from pathlib import Path

import pytest

from dovetail.config import ConfigError
from dovetail.zoo import check_published, check_target, is_published_name


def error_of(check, *args: str) -> str:
    with pytest.raises(ConfigError) as e:
        check(*args)
    return str(e.value)


@pytest.mark.parametrize("name, is_one", [("hf:x", True), ("hf:", True), ("x", False), ("HF:x", False), ("", False)])
def test_names_of_published_models_begin_with_a_prefix(name, is_one):
    assert is_published_name(name) is is_one


@pytest.mark.parametrize("place", ["org/name", "Qwen/Qwen3-0.6B", "a/b.c_d-e", "0/1"])
def test_what_could_be_a_repository_is_one(place):
    check_published(f"hf:{place}")


@pytest.mark.parametrize(
    "place",
    ["x", "/x/y", "./x", "../x", "x/..", "x/.y", "-x/y", "x/y/z", "x//y", "x/", "x y/z", "~nobody-here/x", "\n"],
)
def test_what_can_be_neither_directory_nor_repository_is_refused(place, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert error_of(check_published, f"hf:{place}") == (
        f"hf:{place}: there is no directory {place!r}. Name one, or a repository as in hf:ORG/NAME."
    )


def test_a_name_without_a_place_is_refused():
    assert error_of(check_published, "hf:") == ("hf:: names no directory. Name one, or a repository as in hf:ORG/NAME.")


def test_a_directory_has_a_config(tmp_path, monkeypatch):
    said = ": the directory has no config.json. Name one in the format of Hugging Face."
    assert error_of(check_published, f"hf:{tmp_path}") == f"hf:{tmp_path}{said}"
    (tmp_path / "config.json").mkdir()
    assert error_of(check_published, f"hf:{tmp_path}") == f"hf:{tmp_path}{said}"
    (tmp_path / "config.json").rmdir()
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    check_published(f"hf:{tmp_path}")
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    check_published(f"hf:~/{tmp_path.name}")
    monkeypatch.chdir(tmp_path)
    check_published("hf:.")


@pytest.mark.parametrize("target", ["new", "./new", "a/b/c", "empty", "empty/", "absolute"])
def test_directories_that_are_new_or_empty_can_be_made_and_are_not_yet(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    check_target(str(tmp_path / target) if target == "absolute" else target, "runs/other")
    assert [each.name for each in tmp_path.iterdir()] == ["empty"]


def test_directories_that_are_there_are_not_written_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("full/.hidden").mkdir(parents=True)
    Path("file").write_text("", encoding="utf-8")
    Path("empty").mkdir()
    Path("link").symlink_to("empty")
    Path("dangling").symlink_to("nowhere")
    for name in ("full", "file", "link", "dangling", "."):
        assert error_of(check_target, name) == (
            f"--to: there is something in {name!r} already. Name a directory that is new."
        )
    for name in ("file/new", "dangling/new"):
        parent = tmp_path / name.partition("/")[0]
        assert error_of(check_target, name) == (f"--to: {name!r} cannot be made: {str(parent)!r} is not a directory.")
    assert error_of(check_target, "") == "--to: names no directory."


def test_what_is_written_is_not_inside_of_what_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("source").mkdir()
    Path("alias").symlink_to("source")
    for source in (
        "source",
        "hf:source",
        "hf:./source",
        "hf:alias",
        f"hf:{tmp_path}/source",
        "~/source",
        "hf:~/source",
    ):
        shown = source.removeprefix("hf:").removeprefix("./").replace("~", str(tmp_path))
        for target in ("source/x", "alias/x/y", "other/../source/x", "source"):
            assert error_of(check_target, target, source) == (
                f"--to: {target!r} is inside of {shown!r}, which is read. Name a directory elsewhere."
            )
        check_target("sourced", source)
    for source in ("", "hf:", "hf:org/name", "tiny-lm", "~nobody-here/x"):  # Which are no directories.
        check_target("source/x", source)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_may_not_be_written_to_is_refused(tmp_path):
    tmp_path.chmod(0o555)
    try:
        said = error_of(check_target, str(tmp_path / "new"))
    finally:
        tmp_path.chmod(0o755)
    assert said == f"--to: '{tmp_path}/new' cannot be made: '{tmp_path}' may not be written to."
