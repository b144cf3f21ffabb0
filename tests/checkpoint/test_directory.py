# SPDX-License-Identifier: Apache-2.0
"""The directory of a run: what counts as a step, what is deleted, and directories that cannot be used."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.checkpoint._directory import discard, finished_steps, prepare, set_aside
from dovetail.checkpoint._keep import expired
from dovetail.config import ConfigError


def test_only_finished_steps_count(tmp_path):
    names = "step_0 step_20 step_3 step_4.tmp step_5.corrupt step_6.deleted step_07 step_-1 step_x 8 step_"
    for name in names.split():
        (tmp_path / name).mkdir()
    (tmp_path / "step_9").touch()
    assert finished_steps(tmp_path) == [0, 3, 20]
    assert finished_steps(tmp_path / "absent") == []


@given(st.sets(st.integers(0, 60)), st.none() | st.integers(1, 9), st.none() | st.integers(1, 9))
def test_the_newest_and_the_multiples_are_kept(steps, keep, keep_every):
    gone = expired(steps, keep=keep, keep_every=keep_every)
    for step in steps:
        newer = sum(other > step for other in steps)
        kept = keep is None or newer < keep or (keep_every is not None and step % keep_every == 0)
        assert (step in gone) == (not kept)
    assert gone == sorted(gone)


def test_prepare_makes_the_directory_and_removes_what_broken_saves_left(tmp_path):
    run = tmp_path / "a" / "run"
    prepare(run)
    for name in ("step_1", "step_2.tmp/arrays", "step_3.deleted/arrays", "step_4.corrupt"):
        (run / name).mkdir(parents=True)
    prepare(run)
    assert sorted(os.listdir(run)) == ["step_1", "step_4.corrupt"]


def test_a_directory_with_something_else_is_left_alone(tmp_path):
    for name in ("notes.txt", "model.safetensors", ".hidden", "step_3.tmp", "4000"):
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigError) as e:
        prepare(tmp_path)
    assert str(e.value) == (
        f"checkpoint directory {tmp_path} holds something else: '4000', 'model.safetensors', 'notes.txt'.\n"
        f"  Use a new or an empty directory. Nothing was written."
    )
    assert len(os.listdir(tmp_path)) == 5


def test_files_beside_steps_do_no_harm(tmp_path):
    (tmp_path / "step_1").mkdir()
    (tmp_path / "notes.txt").touch()
    prepare(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "step_1"]


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_is_not_a_directory(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(ConfigError) as e:
        prepare(file / below)
    assert str(e.value) == f"checkpoint directory {file / below} cannot be made: {file / below} is not a directory."
    assert file.read_text() == "precious"


def test_a_directory_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def refuse(path: Path, *args, **kwargs) -> None:  # Permissions do not stop root, who may run the tests.
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigError) as e:
        prepare(tmp_path / "run")
    run = tmp_path / "run"
    assert str(e.value) == f"checkpoint directory {run} cannot be written: Permission denied ({run})."


def test_discarding_leaves_nothing(tmp_path):
    (tmp_path / "step_1" / "arrays").mkdir(parents=True)
    discard(tmp_path / "step_1")
    assert os.listdir(tmp_path) == []


def test_setting_aside_overwrites_nothing(tmp_path):
    for _ in range(3):
        (tmp_path / "step_1").mkdir()
        set_aside(tmp_path / "step_1")
    assert sorted(os.listdir(tmp_path)) == ["step_1.corrupt", "step_1.corrupt-2", "step_1.corrupt-3"]
