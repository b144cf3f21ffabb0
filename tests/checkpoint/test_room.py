# SPDX-License-Identifier: Apache-2.0
"""A full disk, a real one: saves fail and are said, nothing is damaged, and when there is room again it goes on."""

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoint.helpers import abstract, assert_identical, config_in, listed
from dovetail.checkpoint import CheckpointError
from support.small_disk import fill, small_disk

SIZE = 300_000  # Bytes of the state.


def state(step: int):
    return {"w": jnp.asarray(np.random.default_rng(step).integers(0, 255, SIZE, np.uint8))}


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as place:
        yield place


def test_saves_that_do_not_fit_fail_cleanly_and_go_on_when_there_is_room(disk, caplog):
    run = disk / "run"
    checkpointer = config_in(run, keep=2, max_failed_saves=3).build()
    checkpointer.save(1, state(1), config=checkpointer.cfg)
    checkpointer.wait()
    filler = fill(disk, leave=SIZE + 100_000)
    checkpointer.save(2, state(2), config=checkpointer.cfg)
    checkpointer.wait()
    (early,) = [message for message in caplog.messages if "will not fit" in message]
    assert early.startswith(f"checkpoint {run}: the next save will not fit. A step needs 300,")
    for step in (3, 4):
        checkpointer.save(step, state(step), config=checkpointer.cfg)  # Both fail, the training goes on.
    with pytest.raises(CheckpointError, match=r"(?s)step_4 was not saved: No space left on device\.\n  A step needs"):
        checkpointer.wait()
    assert caplog.text.count("was not saved: No space left on device.\n  A step needs 300,") == 2
    assert "save 1 in a row has failed, of 2 that may: training goes on." in caplog.text
    assert listed(run) == ["step_1", "step_2"]
    assert_identical(checkpointer.restore(abstract(state(2))).state, state(2))
    filler.unlink()
    checkpointer.save(5, state(5), config=checkpointer.cfg)
    checkpointer.wait()
    assert checkpointer.steps() == [2, 5]
    for step in (2, 5):
        assert_identical(checkpointer.restore(abstract(state(0)), step=step).state, state(step))


def test_a_run_ends_when_too_many_saves_in_a_row_have_failed(disk):
    checkpointer = config_in(disk / "run", max_failed_saves=2).build()
    checkpointer.save(1, state(1), config=checkpointer.cfg)
    checkpointer.wait()
    fill(disk, leave=100_000)
    checkpointer.save(2, state(2), config=checkpointer.cfg)
    checkpointer.save(3, state(3), config=checkpointer.cfg)
    with pytest.raises(CheckpointError) as e:
        checkpointer.save(4, state(4), config=checkpointer.cfg)
    first, lacks, left, count = str(e.value).splitlines()
    assert first == f"checkpoint {disk}/run/step_3 was not saved: No space left on device."
    assert lacks.startswith("  A step needs 300,")
    assert left == "  The newest finished step is step_1."
    assert count == "  2 saves in a row have failed (max_failed_saves)."
    assert checkpointer.steps() == [1]


def test_a_save_that_works_in_between_starts_the_count_anew(disk):
    checkpointer = config_in(disk / "run", keep=1, max_failed_saves=2).build()
    for step in range(1, 7):
        filler = fill(disk, leave=100_000) if step % 2 else None
        checkpointer.save(step, state(step), config=checkpointer.cfg)
        checkpointer._thread.join()  # Not `wait`, which raises.
        if filler:
            filler.unlink()
    checkpointer.wait()
    assert checkpointer.steps() == [6]
