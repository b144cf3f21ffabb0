# SPDX-License-Identifier: Apache-2.0
"""What every store keeps: steps that are whole or not there, on any mesh, whatever process was killed when."""

import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoint.helpers import (
    abstract,
    assert_identical,
    config_in,
    files_of,
    flip,
    mesh,
    save_steps,
    sharded,
    small_state,
    start_python,
)
from dovetail.checkpoint import CheckpointError, CorruptionError, load_config
from dovetail.storage import Objects


def leftovers(place: str) -> list[str]:
    """Returns what there is of steps that are not finished."""
    if "://" in place:
        objects = Objects(place, where="test")
        finished = [key.partition(".")[0] for key in objects.keys("finished/")]
        data = [key for key in objects.keys("data/") if key.partition("-")[0] not in finished]
        return data + objects.keys("making/")
    return [path.name for path in Path(place).iterdir() if path.name.endswith((".tmp", ".deleted"))]


def damage(place: str, step: int, name: str) -> None:
    """Changes a bit of what is stored of a step under a name that begins so, the first of them."""
    if "://" in place:
        objects = Objects(place, where="test")
        key = next(key for key in objects.keys("data/") if key.startswith(f"step_{step}-") and f"/{name}" in key)
        data = bytearray(objects.read(f"data/{key}") or b"")
        data[len(data) // 2] ^= 4
        objects.write(f"data/{key}", bytes(data))
    else:
        files = [file for file in files_of(Path(place, f"step_{step}")) if f"/{name}" in str(file)]
        largest = max(files, key=lambda file: file.stat().st_size)
        flip(largest, 8 * (largest.stat().st_size // 2))


def test_what_is_saved_comes_back_onto_any_mesh(place):
    weight = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    state = {"odd['a/b'] %": sharded(weight, "a", on=mesh(8)), "n": jnp.arange(3, dtype=jnp.bfloat16)}
    state |= {"zeros": jnp.zeros((4, 4)), "empty": jnp.zeros((0, 2)), "int4": jnp.arange(4).astype(jnp.int4)}
    state |= {"rows": sharded(weight, None, "b", on=mesh(4, 2)), "uint4": jnp.arange(4).astype(jnp.uint4)}
    cfg = config_in(place)
    with cfg.build() as checkpointer:
        checkpointer.save(1, state, config=cfg, data_state={"next": 5}, files={"vocab": b"a b"})
        checkpointer.wait()
        restored = checkpointer.restore(abstract(state))
        assert_identical(restored.state, state)
        assert restored.data_state == {"next": 5}
        elsewhere = dict(state)
        elsewhere["odd['a/b'] %"] = sharded(weight, "b", "a", on=mesh(2, 4))
        elsewhere["rows"] = jax.device_put(weight, jax.devices()[3])
        assert_identical(checkpointer.restore(abstract(elsewhere)).state, state)
    assert dict(load_config(place).files) == {"vocab": b"a b"}
    assert leftovers(place) == []


def test_a_donated_state_is_saved_as_it_was(place):
    cfg, state = config_in(place), small_state(3)
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1 if x.dtype == jnp.float32 else x, tree), donate_argnums=0)
    with cfg.build() as checkpointer:
        checkpointer.save(1, state, config=cfg)
        step(state)
        assert_identical(checkpointer.restore(abstract(small_state(3))).state, small_state(3))


def test_old_steps_are_deleted_with_all_that_was_theirs(place):
    checkpointer = save_steps(place, 1, 2, 3, keep=1)
    assert checkpointer.steps() == [3]
    assert leftovers(place) == []
    checkpointer.discard_after(0)
    assert checkpointer.steps() == leftovers(place) == []


@pytest.mark.parametrize("name", ["arrays/", "data_state.json", "files/vocab"])
def test_what_was_changed_is_found_and_the_step_before_is_taken(place, name):
    checkpointer = save_steps(place, 1, 2)
    damage(place, 2, name)
    if name == "files/vocab":
        with pytest.raises(CorruptionError, match="files/vocab: crc32"):
            load_config(place, 2)
    with pytest.raises(CorruptionError, match=f"step_2 is damaged:(.|\n)*{name}(.|\n)*Older steps: 1."):
        checkpointer.restore(abstract(small_state()), 2)
    restored = checkpointer.restore(abstract(small_state()))
    assert (restored.step, list(restored.skipped)) == (1, [2])
    assert_identical(restored.state, small_state(1))
    checkpointer.save(2, small_state(2), config=checkpointer.cfg)  # The damaged one is set aside.
    assert_identical(checkpointer.restore(abstract(small_state()), 2).state, small_state(2))


SAVE_AND_STOP = """
import os, sys, time
from checkpoint.helpers import config_in, save_steps, small_state
place = sys.argv[1]
checkpointer = save_steps(place, 1)
part = sys.argv[2]
def stop(*args, **kwargs):
    print("in", part, flush=True)
    time.sleep(600)
setattr(checkpointer.store, part, stop)
checkpointer.save(2, small_state(2), config=checkpointer.cfg)
checkpointer.wait()
"""


def test_a_process_that_is_killed_in_a_save_leaves_the_newest_good_step_and_its_rest_is_cleaned(place):
    process = start_python(SAVE_AND_STOP, place, "commit")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "in commit\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert leftovers(place)
    checkpointer = config_in(place).build()
    assert checkpointer.steps() == [1]
    assert_identical(checkpointer.restore(abstract(small_state())).state, small_state(1))
    checkpointer.prepare()  # At once: that process was on this host, and is gone.
    assert leftovers(place) == []
    checkpointer.save(2, small_state(2), config=checkpointer.cfg)
    checkpointer.wait()
    assert checkpointer.steps() == [1, 2]


def test_a_save_that_fails_is_reported_and_leaves_nothing(place, monkeypatch):
    checkpointer = save_steps(place, 1)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer.store, "being_made", refuse)
        checkpointer.save(2, small_state(2), config=checkpointer.cfg)
        with pytest.raises(CheckpointError, match=r"step_2 was not saved: No space left on device.\n.*is step_1"):
            checkpointer.wait()
    assert checkpointer.steps() == [1]
    assert leftovers(place) == []
