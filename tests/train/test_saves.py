# SPDX-License-Identifier: Apache-2.0
"""Saves of a run that fail: tried again, and in the end it is saved or says why not."""

import errno

import pytest

from dovetail.checkpoint import Checkpointer, CheckpointError, _store_posix
from support.runs import tiny


def breaks(monkeypatch, times: int) -> None:
    """Has so many saves fail when they are about to be finished."""
    real, left = _store_posix.PosixStore.commit, [times]

    def commit(self, *args, **kwargs):
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        real(self, *args, **kwargs)

    monkeypatch.setattr(_store_posix.PosixStore, "commit", commit)


def test_a_last_save_that_fails_is_tried_again(tmp_path, monkeypatch, caplog):
    breaks(monkeypatch, 2)
    cfg = tiny(tmp_path, steps=2, save_every=100, evaluators={})
    cfg.build().run()
    assert caplog.text.count("step_2 was not saved: Input/output error") == 2
    assert Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build().latest() == 2


def test_a_run_whose_last_save_fails_too_often_ends_with_the_error(tmp_path, monkeypatch):
    breaks(monkeypatch, 100)
    with pytest.raises(CheckpointError, match="step_2 was not saved: Input/output error"):
        tiny(tmp_path, steps=2, save_every=100, evaluators={}).build().run()
