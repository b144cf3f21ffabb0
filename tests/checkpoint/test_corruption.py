# SPDX-License-Identifier: Apache-2.0
"""No changed bit, cut, missing or unreadable file goes unnoticed, and an older step takes over if that is wanted."""

import logging
import random
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from checkpoint.helpers import (
    abstract,
    assert_identical,
    config_in,
    files_of,
    flip,
    listed,
    mesh,
    save_steps,
    sharded,
    small_state,
)
from dovetail.checkpoint import CorruptionError, load_config

BIG = 1 << 16  # Smaller files are summed before anything is loaded.


def big_state():
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "params": {"w": sharded(jax.random.normal(keys[0], (64, 512)), "a", on=mesh(8))},
        "mu": jax.random.normal(keys[1], (64, 512)).astype(jnp.bfloat16),
    }


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "compressed"])
def big_run(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    cfg = config_in(directory, compress=request.param)
    with cfg.build() as checkpointer:
        checkpointer.save(4, big_state(), config=cfg, data_state={"next": 4}, files={"vocab": b"a b c"})
    return cfg


def problem_with(checkpointer, state) -> str | None:
    """Returns the message of an attempt to restore; without one, the state is the one that was saved."""
    try:
        restored = checkpointer.restore(abstract(state))
    except CorruptionError as e:
        return str(e)
    assert_identical(restored.state, state)
    return None


def test_no_flipped_bit_goes_unnoticed_in_any_file(big_run):
    """40 bits in each file of arrays, 4 in each of the others."""
    rng = random.Random(0)
    checkpointer, state = big_run.build(), big_state()
    step = Path(checkpointer.store.where) / "step_4"
    big = [file for file in files_of(step) if file.stat().st_size > BIG]
    assert big
    for file in files_of(step):
        good = file.read_bytes()
        for _ in range(40 if file in big else 4 if good else 0):
            flip(file, rng.randrange(len(good) * 8))
            problem = problem_with(checkpointer, state)
            file.write_bytes(good)
            assert problem is not None
            assert problem.startswith(f"checkpoint {step} is damaged:\n")
            assert f"\n  {file.relative_to(step).as_posix()}: " in problem
    assert problem_with(checkpointer, state) is None


def test_cut_missing_and_unreadable_files_are_named(big_run, tmp_path):
    step = shutil.copytree(big_run.build().store.where, tmp_path / "run") / "step_4"
    checkpointer, wanted = big_run.set(directory=str(tmp_path / "run")).build(), abstract(big_state())

    def problem() -> str:
        with pytest.raises(CorruptionError) as e:
            checkpointer.restore(wanted)
        return str(e.value).removeprefix(f"checkpoint {step} is damaged:\n  ")

    for file in files_of(step):
        name, good = file.relative_to(step).as_posix(), file.read_bytes()
        file.unlink()
        assert problem() == f"{name}: No such file or directory."
        file.mkdir()
        assert problem().startswith(f"{name}: ")
        file.rmdir()
        file.write_bytes(good[:-1])
        cut = f"{name}: {len(good) - 1} bytes, {len(good)} were written."
        has_sum_inside = name in ("manifest.json", "arrays/0.json")
        assert problem() == (f"{name}: ValueError: its checksum does not fit its content" if has_sum_inside else cut)
        file.write_bytes(good)
    assert checkpointer.restore(wanted).step == 4


def test_the_full_message_names_file_place_and_the_way_out(tmp_path):
    cfg = config_in(tmp_path, on_corruption="error")
    state = {"w": jax.random.normal(jax.random.key(0), (256, 128))}
    with cfg.build() as checkpointer:
        for step in (10, 20):
            checkpointer.save(step, state, config=cfg)
    flip(tmp_path / "step_20/arrays/0", 400_000)
    with pytest.raises(CorruptionError) as e:
        checkpointer.restore(abstract(state))
    lines = str(e.value).splitlines()
    assert lines[0] == f"checkpoint {tmp_path}/step_20 is damaged:"
    assert lines[1].startswith("  arrays/0: bytes 0 to 131072 have crc32 ")
    assert lines[1].endswith(" was written.")
    assert lines[2:] == ["  Older steps: 10."]
    assert checkpointer.restore(abstract(state), step=10).step == 10


def test_data_that_was_wrong_before_it_was_written_is_told_from_a_bad_disk(tmp_path, monkeypatch):
    cfg = config_in(tmp_path)
    checkpointer = cfg.build()
    # As if a bit had flipped between the fingerprint, taken on the device, and the file.
    monkeypatch.setattr("dovetail.checkpoint._arrays.to_stored", lambda leaf: leaf.at[0].set(-1.0))
    checkpointer.save(1, {"w": jnp.ones(3)}, config=cfg)
    with pytest.raises(CorruptionError) as e:
        checkpointer.restore({"w": jnp.ones(3)})
    lines = str(e.value).splitlines()
    assert lines[1].startswith("  'w' has fingerprint ")
    assert lines[1].endswith(" was saved.")
    assert lines[2:] == [
        "  All files are as they were written: the data changed on its way to them, or on its way back."
    ]


def test_fallback_restores_the_newest_good_step_and_says_so(tmp_path, caplog):
    checkpointer = save_steps(tmp_path, 10, 20, 30)
    for step in (20, 30):
        flip(tmp_path / f"step_{step}/config.json", 9)
    with caplog.at_level(logging.WARNING, "dovetail.checkpoint"):
        restored = checkpointer.restore(abstract(small_state()))
    assert (restored.step, restored.data_state, list(restored.skipped)) == (10, {"next": 10}, [30, 20])
    assert restored.skipped[30].startswith(f"checkpoint {tmp_path}/step_30 is damaged:\n  config.json: crc32 ")
    assert [record.message for record in caplog.records if record.name.startswith("dovetail")] == [
        f"{restored.skipped[step]}\n  Falling back to step_10." for step in (30, 20)
    ]
    assert_identical(restored.state, small_state(10))
    assert checkpointer.steps() == [10, 20, 30]  # Restoring changes nothing.


def test_after_a_fallback_damaged_steps_are_saved_anew_and_kept_for_inspection(tmp_path):
    checkpointer = save_steps(tmp_path, 10, 20, 30, keep=2, keep_every=10)
    flip(tmp_path / "step_30/data_state.json", 9)
    assert checkpointer.restore(abstract(small_state())).step == 20
    for step in (25, 30, 35):
        checkpointer.save(step, small_state(step), config=checkpointer.cfg)
    checkpointer.wait()
    assert listed(tmp_path) == [
        ".steps.json",
        "step_10",
        "step_20",
        "step_30",
        "step_30.corrupt",
        "step_35",
    ]
    assert_identical(checkpointer.restore(abstract(small_state()), step=30).state, small_state(30))


def test_without_a_good_step_all_are_reported(tmp_path):
    checkpointer = save_steps(tmp_path, 10, 20)
    for step in (10, 20):
        (tmp_path / f"step_{step}/manifest.json").unlink()
    with pytest.raises(CorruptionError) as e:
        checkpointer.restore(abstract(small_state()))
    assert str(e.value) == (
        f"checkpoint {tmp_path}: no step is undamaged.\n"
        f"checkpoint {tmp_path}/step_20 is damaged:\n  manifest.json: No such file or directory.\n"
        f"checkpoint {tmp_path}/step_10 is damaged:\n  manifest.json: No such file or directory."
    )


def test_damaged_configs_are_noticed_without_arrays(tmp_path):
    save_steps(tmp_path, 10, 20)
    flip(tmp_path / "step_20/files/vocab", 9)
    asked: dict[str, Any]
    for asked in ({"on_corruption": "error"}, {"step": 20}):  # Whoever names a step gets that one or none.
        with pytest.raises(CorruptionError, match=r"step_20 is damaged:\n  files/vocab: crc32 .*\n  Older steps: 10\."):
            load_config(str(tmp_path), **asked)
    found = load_config(str(tmp_path))
    assert (found.step, list(found.skipped)) == (10, [20])
