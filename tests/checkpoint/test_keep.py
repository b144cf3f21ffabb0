# SPDX-License-Identifier: Apache-2.0
"""Which steps stay: whatever is saved, evaluated, damaged and restarted, and never one less than a good one."""

import math
import tempfile
from pathlib import Path

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.helpers import config_in, flip, save_steps, small_state
from dovetail.checkpoint import KeepBest
from dovetail.config import ConfigError

BEST = KeepBest(metric="eval/loss", count=2)


def test_the_best_steps_stay_across_restarts_even_if_evaluated_after_they_were_saved(tmp_path):
    values = {1: 3.0, 2: 1.0, 3: 2.0, 4: 5.0, 5: 4.0, 6: float("nan")}
    for step, value in values.items():  # A new checkpointer each time.
        checkpointer = save_steps(tmp_path, step, keep=1, keep_best=BEST)
        checkpointer.report(step, {"eval/loss": value, "eval/accuracy": -1.0})
    assert save_steps(tmp_path, 7, keep=1, keep_best=BEST).steps() == [2, 3, 7]
    most = KeepBest(metric="eval/loss", mode="max")
    assert save_steps(tmp_path, 8, keep=1, keep_best=most).steps() == [3, 8]


def test_without_its_record_no_step_that_may_be_the_best_is_deleted(tmp_path, caplog):
    for step in (1, 2, 3):
        checkpointer = save_steps(tmp_path, step, keep=1, keep_best=BEST)
        checkpointer.report(step, {"eval/loss": float(step)})
    flip(tmp_path / ".steps.json", 99)
    assert save_steps(tmp_path, 4, 5, keep=1, keep_best=BEST).steps() == [1, 2, 3, 5]
    assert save_steps(tmp_path, 6, keep=1, keep_best=BEST).steps() == [1, 2, 3, 6]  # Nor later.
    (said,) = [record.message for record in caplog.records if "is lost" in record.message]
    assert said.startswith(f"checkpoint {tmp_path}: what is known of its steps cannot be read: ")
    assert said.endswith("\n  Which of them are the best is lost: all that are there now are kept.")


def test_nothing_is_deleted_for_a_step_that_is_damaged_at_once(tmp_path, monkeypatch, caplog):
    from dovetail.checkpoint import _store_posix

    checkpointer = save_steps(tmp_path, 1, keep=1)
    real = _store_posix.PosixStore.commit

    def commit_and_damage(self, making, step, *args, **kwargs):
        real(self, making, step, *args, **kwargs)
        flip(tmp_path / f"step_{step}/manifest.json", 99)

    monkeypatch.setattr(_store_posix.PosixStore, "commit", commit_and_damage)
    checkpointer.save(2, small_state(2), config=checkpointer.cfg)
    checkpointer.wait()
    assert checkpointer.steps() == [1, 2]
    assert "It was just written: no older step is deleted." in caplog.text
    assert checkpointer.restore(small_state()).step == 1


@pytest.mark.parametrize("fields", [{"keep": 0}, {"keep_every": 0}, {"keep_best": BEST.set(count=0)}])
def test_numbers_below_one_are_refused(fields, tmp_path):
    (name,) = fields
    name = "keep_best.count" if name == "keep_best" else name
    with pytest.raises(ConfigError) as e:
        config_in(tmp_path, **fields).build(path="trainer.checkpoint")
    assert str(e.value) == f"trainer.checkpoint.{name}: expected a number of 1 or more, or None; found 0."


ACTION = st.one_of(
    st.just("save"),
    st.just("restart"),
    st.just("restore"),
    st.just("damage"),
    st.sampled_from([1.0, 2.0, 3.0, float("nan")]),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(ACTION, max_size=14), st.integers(1, 2), st.sampled_from([None, 3]), st.integers(1, 2))
def test_steps_stay_as_said_and_the_newest_good_one_always(actions, keep, keep_every, count):
    best = KeepBest(metric="m", count=count)
    state = {"w": jnp.ones(3)}
    with tempfile.TemporaryDirectory() as directory:
        cfg = config_in(Path(directory), keep=keep, keep_every=keep_every, keep_best=best)
        checkpointer, step = cfg.build(), 0
        present: set[int] = set()
        damaged: set[int] = set()  # Whatever is known of it,
        known: set[int] = set()  # what is,
        written: set[int] = set()  # and what is written down, with a save: who only reads writes nothing.
        values: dict[int, float] = {}
        for action in ["save", *actions, "save"]:
            if action == "save":
                step += 1
                checkpointer.save(step, state, config=cfg)
                checkpointer.wait()
                good = sorted({*present, step} - known)
                ranked = sorted((values[s], -s) for s in good if values.get(s, math.nan) < math.inf)
                every = (s for s in good if keep_every and s % keep_every == 0)
                kept = {*good[-keep:], *(-s for _, s in ranked[:count]), *every}
                present = kept | (known & present)
                written = set(known)
            elif action == "restart":
                checkpointer.close()
                checkpointer, known = cfg.build(), set(written)
            elif action == "damage" and len(present - damaged) > 1:
                flip(Path(directory) / f"step_{max(present)}/arrays/0", 5)
                damaged.add(max(present))
            elif action == "restore":
                restored = checkpointer.restore(state)
                assert restored.step == max(present - damaged)
                known |= set(restored.skipped)
                step = max(step, *present)
            elif isinstance(action, float):
                checkpointer.report(step, {"m": action})
                values[step] = action
            assert set(checkpointer.steps()) == present
            assert present - damaged
        checkpointer.close()
