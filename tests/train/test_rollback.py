# SPDX-License-Identifier: Apache-2.0
"""What a run does about bad batches: it passes over their updates, or is the run that never saw them, bit for bit."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.parallel import Mesh
from dovetail.train import Spikes, Trainer, TrainingError
from support.poisoned import poisoned_run

ROLLBACK = Spikes.Config(policy="rollback", window=8, warmup=4)


def records(cfg: Trainer.Config, name: str) -> list:
    lines = (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [(record["step"], record[name]) for record in found if name in record]


def run(cfg: Trainer.Config):
    return jax.device_get(cfg.build().run())


def equal(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_the_update_of_a_spike_is_left_out_and_said_with_its_limit(tmp_path):
    cfg = poisoned_run(tmp_path, bad=(7,))
    state = run(cfg)
    ((step, said),) = records(cfg, "spike")
    assert step == 7
    assert said.startswith("loss ")
    assert "is above" in said
    assert "where the median is" in said
    assert said.endswith("its update is left out (1 so far)")
    assert (int(state.step), int(state.learner.num_updates), int(state.learner.num_skipped)) == (14, 13, 1)
    assert records(cfg, "spikes")[-1] == (14, 1)
    # Nothing in this model depends on the number of the step: it is the run of 13 steps without that batch.
    want = run(poisoned_run(tmp_path / "other", without=(7,), steps=13))
    for name in ("optimizer", "ema", "num_updates"):
        equal(getattr(state.learner, name), getattr(want.learner, name))
    equal(state.params, want.params)
    equal(state.spikes.losses, want.spikes.losses)


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory):
    """A run with two spikes after its checkpoint of step 4, and its last state."""
    cfg = poisoned_run(tmp_path_factory.mktemp("rolled_back"), spikes=ROLLBACK, bad=(6, 9))
    return cfg, run(cfg)


def test_a_rollback_is_the_run_without_the_batches_bit_for_bit(rolled_back, tmp_path):
    cfg, state = rolled_back
    # Batch 6 at step 6: back to step 4, on with batch 7. Batch 9 is then that of step 7: back to step 4, on with 10.
    without = tuple(range(5, 10))
    equal(state, run(poisoned_run(tmp_path, spikes=ROLLBACK, without=without)))
    first, second = [text for _, text in records(cfg, "rollback")]
    assert first.startswith("at step 6, back to step 4, without batches 5 to 6: loss ")
    assert second.startswith("at step 7, back to step 4, without batches 5 to 9: loss ")
    ((step, said),) = records(cfg, "summary of rollbacks")
    assert (step, said.splitlines()[0]) == (14, "Rollbacks: 2, which have left out 5 batches.")
    assert records(cfg, "batches_left_out")[-1] == (14, 5)


def test_a_run_that_dies_after_a_rollback_goes_on_as_the_unbroken_one(rolled_back, tmp_path):
    cfg, state = rolled_back
    for newest in (4, 8):  # Before the rollbacks are recorded, and after.
        copy = Path(shutil.copytree(cfg.directory, tmp_path / f"from_{newest}"))
        for step in (4, 8, 12, 14):
            if step > newest:
                shutil.rmtree(copy / f"checkpoints/step_{step}", ignore_errors=True)
        (copy / "metrics.jsonl").unlink()
        again = cfg.set(directory=str(copy))
        equal(state, run(again))
        assert len(records(again, "rollback")) == (2 if newest == 4 else 0)
        assert records(again, "batches_left_out")[-1] == (14, 5)


@pytest.mark.slow
def test_a_run_that_is_interrupted_at_a_spike_goes_on_as_the_unbroken_one(rolled_back, tmp_path):
    want, state = rolled_back
    cfg = want.set(directory=str(tmp_path / "run"))
    for steps in (5, 6, 7, 10):  # Each ends with a checkpoint of its own, which a rollback does not go back to.
        run(cfg.set(steps=steps))
    equal(state, run(cfg))


@pytest.mark.slow
def test_before_the_first_checkpoint_a_run_goes_back_to_its_start(tmp_path):
    cfg = poisoned_run(tmp_path, spikes=ROLLBACK, bad=(6,), save_every=10)
    state = run(cfg)
    equal(state, run(poisoned_run(tmp_path / "other", spikes=ROLLBACK, without=tuple(range(1, 7)), save_every=10)))
    ((_, said),) = records(cfg, "rollback")
    assert said.startswith("at step 6, back to step 0, without batches 1 to 6: ")


@pytest.mark.slow
def test_steps_that_are_not_finite_in_a_row_are_rolled_back_if_asked(tmp_path):
    spikes = Spikes.Config(window=8, warmup=4, rollback_after_bad=3)
    cfg = poisoned_run(tmp_path, spikes=spikes, not_finite=(2, 7, 8, 9))
    state = run(cfg)
    # The checkpoint of step 8 is within the bad steps: it goes back to that of step 4.
    want = poisoned_run(tmp_path / "other", spikes=spikes, not_finite=(2,), without=tuple(range(5, 10)))
    equal(state, run(want))
    ((_, said),) = records(cfg, "rollback")
    assert said.startswith("at step 9, back to step 4, without batches 5 to 9: loss nan")


@pytest.mark.slow
def test_too_many_rollbacks_end_the_run_with_the_reason(tmp_path):
    cfg = poisoned_run(tmp_path, spikes=ROLLBACK.set(max_rollbacks=1), bad=(6, 9))
    with pytest.raises(
        TrainingError, match=r"(?s)^step 7 would have to be rolled back, and 1 rollback is made, of at "
    ):
        run(cfg)
    assert Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build().steps() == [4]
    equal(run(cfg.set_in("spikes.max_rollbacks", 2)), run(poisoned_run(tmp_path / "o", spikes=ROLLBACK, bad=(6, 9))))


def test_spikes_without_end_are_an_error(tmp_path):
    cfg = poisoned_run(tmp_path, bad=tuple(range(6, 30)), max_bad_steps=5)
    with pytest.raises(TrainingError, match=r"the last 5 steps, up to step 10, was not finite, or far above the usual"):
        run(cfg)


@pytest.mark.parametrize("fields", [{"mesh": Mesh(data=4), "num_microbatches": 2}])
def test_meshes_and_microbatches_find_the_same_spikes(fields, tmp_path):
    one, other = (poisoned_run(tmp_path / name, spikes=ROLLBACK, bad=(6,), steps=9) for name in ("one", "other"))
    state, same = run(one), run(other.set(**fields))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state, same)
    assert [step for step, _ in records(one, "rollback")] == [step for step, _ in records(other, "rollback")] == [6]


def test_without_spikes_nothing_is_kept_for_them(tmp_path):
    cfg = poisoned_run(tmp_path).set(spikes=None)
    program = cfg.build()._program
    assert program.abstract_state().spikes == ()
    assert "sort" not in program.traced().lower().as_text()
