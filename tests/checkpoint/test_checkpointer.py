# SPDX-License-Identifier: Apache-2.0
"""The checkpointer as a trainer sees it: saving in the background, resuming, keeping, refusing."""

import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from checkpoint.helpers import abstract, assert_identical, config_in, listed, mesh, save_steps, sharded, small_state
from dovetail.checkpoint import Checkpointer, CheckpointError, flatten, load_config
from dovetail.config import REQUIRED, Component, ConfigError, from_json


@pytest.fixture
def gate(monkeypatch):
    """Holds back every save before its manifest is written, until the event is set."""
    event = threading.Event()
    real = Checkpointer._commit

    def wait_and_commit(self, save, written):
        assert event.wait(30)
        real(self, save, written)

    monkeypatch.setattr(Checkpointer, "_commit", wait_and_commit)
    yield event
    event.set()


def error_of(function, *args, kind: type[Exception] = ConfigError, **kwargs) -> str:
    with pytest.raises(kind) as e:
        function(*args, **kwargs)
    return str(e.value)


def test_what_is_saved_is_restored(tmp_path):
    checkpointer = save_steps(tmp_path, 10, 20)
    restored = checkpointer.restore(abstract(small_state()))
    assert (restored.step, restored.data_state, restored.skipped) == (20, {"next": 20}, {})
    assert_identical(restored.state, small_state(20))
    older = checkpointer.restore(small_state(), step=10)  # Arrays say what to restore, too.
    assert (older.step, older.data_state) == (10, {"next": 10})
    assert_identical(older.state, small_state(10))


def test_parts_are_restored_by_path_and_what_is_not_there_is_an_error(tmp_path):
    checkpointer = save_steps(tmp_path, 10)
    part = {"params": abstract(small_state())["params"]}
    wanted = flatten(part)
    assert_identical(checkpointer.restore_parts(wanted).state, flatten({"params": small_state(10)["params"]}))
    first = next(iter(wanted))
    assert error_of(checkpointer.restore_parts, {f"{first}x": wanted[first]}) == (
        f"checkpoint {tmp_path}/step_10: '{first}x' is in this model, not on disk.\n  Nothing was restored."
    )
    assert error_of(checkpointer.restore, part) == (
        f"checkpoint {tmp_path}/step_10: 2 leaves do not fit this model:\n"
        f"  'key' is on disk, not in this model.\n"
        f"  'step' is on disk, not in this model.\n"
        f"  Nothing was restored."
    )


class Model(Component):
    class Config(Component.Config):
        dim: int = REQUIRED
        activation: object = jnp.tanh


def test_config_and_files_travel_along(tmp_path):
    cfg = Model.Config(dim=8)
    with config_in(tmp_path).build() as checkpointer:
        checkpointer.save(3, {"w": jnp.ones(3)}, config=cfg, files={"vocab": b"\x00\xff", ".x": b""})
    found = load_config(str(tmp_path))
    assert from_json(found.config, allow=[__name__.partition(".")[0]]) == cfg
    assert (found.step, found.files, found.skipped) == (3, {"vocab": b"\x00\xff", ".x": b""}, {})


def test_save_returns_before_the_files_are_written(tmp_path, gate):
    cfg = config_in(tmp_path)
    checkpointer = cfg.build()
    checkpointer.save(1, small_state(1), config=cfg)
    assert checkpointer.latest() is None  # Not there yet, and the program goes on:
    assert float(jnp.sum(jnp.ones(3))) == 3
    gate.set()
    checkpointer.wait()
    assert checkpointer.latest() == 1


def test_save_waits_if_asked_to(tmp_path):
    cfg = config_in(tmp_path, asynchronous=False)
    checkpointer = cfg.build()
    checkpointer.save(1, small_state(1), config=cfg)
    assert checkpointer.latest() == 1


def test_the_state_may_be_donated_while_it_is_saved(tmp_path, gate):
    @jax.jit
    def fresh(i):
        return {"w": jnp.arange(64.0 * 512).reshape(64, 512) + i, "v": jnp.full((16,), i)}

    overwrite = jax.jit(lambda state: jax.tree.map(lambda x: x * 0 - 1, state), donate_argnums=0)
    cfg = config_in(tmp_path, keep=None)
    checkpointer = cfg.build()
    gate.set()
    for i in range(6):
        state = fresh(float(i))
        state["w"] = sharded(state["w"], "a", on=mesh(8))
        checkpointer.save(i, state, config=cfg)
        for _ in range(5):  # In the place of the old one, if that is free.
            state = overwrite(state)
    wanted = abstract(fresh(0.0))
    for i in range(6):
        assert_identical(checkpointer.restore(wanted, step=i).state, fresh(float(i)))


def tiny_run(on: jax.sharding.Mesh):
    """Returns the initial state and the step function of a model with Adam and dropout, and its batches."""
    optimizer = optax.adamw(1e-2)
    weight = jax.random.normal(jax.random.key(0), (8, 8))
    params = {"up": sharded(weight, "a", on=on), "down": sharded(weight.T, "a", on=on)}
    replicated = sharded(jax.random.key(1), on=on)
    state = {"params": params, "opt": optimizer.init(params), "key": replicated}
    shardings = jax.tree.map(lambda x: x.sharding if x.ndim else replicated.sharding, state)

    def train(state, batch):
        key, dropout = jax.random.split(state["key"])

        def loss(params):
            kept = jax.random.bernoulli(dropout, 0.9, (4, 8)).astype(jnp.float32)
            return jnp.mean(jnp.square(jnp.tanh(batch @ params["up"]) * kept @ params["down"] - batch))

        with jax.numpy_dtype_promotion("standard"):  # Optax relies on it.
            updates, opt = optimizer.update(jax.grad(loss)(state["params"]), state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "key": key}

    def batch(step):
        return jnp.asarray(np.random.default_rng(step).normal(size=(4, 8)), jnp.float32)

    return jax.device_put(state, shardings), jax.jit(train, out_shardings=shardings, donate_argnums=0), batch


def test_a_resumed_run_is_the_unbroken_run_bit_for_bit(tmp_path):
    """12 steps on 8 devices; the other run is interrupted, and its checkpoint moved to a 4 x 2 grid and back."""
    unbroken, train, batch = tiny_run(mesh(8))
    for step in range(12):
        unbroken = train(unbroken, batch(step))

    cfg = config_in(tmp_path)
    state, train, batch = tiny_run(mesh(8))
    wanted = abstract(state)
    with cfg.build() as first:
        for step in range(7):
            state = train(state, batch(step))
            if step % 2:
                first.save(step + 1, state, config=cfg, data_state={"next": step + 1})
    grid = NamedSharding(mesh(4, 2), P())
    on_grid = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=grid), wanted)
    with cfg.build() as moved:
        restored = moved.restore(on_grid)
        moved.save(restored.step + 1, restored.state, config=cfg, data_state=restored.data_state)
    with cfg.build() as last:
        restored = last.restore(wanted)
        state = restored.state
        for step in range(restored.data_state["next"], 12):
            state = train(state, batch(step))
    assert restored.data_state == {"next": 6}
    assert_identical(state, unbroken)


def test_the_newest_and_the_multiples_are_kept_across_restarts(tmp_path):
    for steps in ((1, 2), (4, 5, 6), (7,)):
        checkpointer = save_steps(tmp_path, *steps, keep=2, keep_every=4)
    assert checkpointer.steps() == [4, 6, 7]
    assert listed(tmp_path) == ["step_4", "step_6", "step_7"]
    assert save_steps(tmp_path / "all", 1, 2, 3, 4, keep=None).steps() == [1, 2, 3, 4]
    assert save_steps(tmp_path / "one", 1, 2, keep=1).steps() == [2]


def test_a_step_that_is_there_is_not_overwritten(tmp_path):
    checkpointer = save_steps(tmp_path, 10, 20)
    before = (tmp_path / "step_20/manifest.json").read_bytes()
    hint = "  Restore the newest step, call discard_after to go back to an older one, or use another directory."
    for step, there in ((20, "it"), (15, "step_20")):
        text = error_of(checkpointer.save, step, small_state(), config=checkpointer.cfg)
        assert text == f"checkpoint {tmp_path}/step_{step} is not saved: {there} is there already.\n{hint}"
    assert (tmp_path / "step_20/manifest.json").read_bytes() == before
    assert checkpointer.steps() == [10, 20]


def test_going_back_to_an_older_step(tmp_path):
    checkpointer = save_steps(tmp_path, 10, 20, 30)
    checkpointer.discard_after(10)
    assert checkpointer.steps() == [10]
    checkpointer.save(20, small_state(99), config=checkpointer.cfg)
    assert_identical(checkpointer.restore(small_state()).state, small_state(99))


def test_there_is_nothing_to_restore(tmp_path):
    nowhere = config_in(tmp_path / "absent").build()
    assert (nowhere.steps(), nowhere.latest()) == ([], None)
    assert error_of(nowhere.restore, small_state()) == f"checkpoint {tmp_path}/absent: there is no finished step."
    checkpointer = save_steps(tmp_path / "run", 10, 20)
    assert error_of(checkpointer.restore, small_state(), step=15) == (
        f"checkpoint {tmp_path}/run: there is no step 15, only 10, 20."
    )
    assert error_of(load_config, str(tmp_path)) == f"checkpoint {tmp_path}: there is no finished step."


def test_a_failed_save_is_reported_at_the_next_call_and_leaves_nothing(tmp_path, monkeypatch, caplog):
    checkpointer = save_steps(tmp_path, 10, max_failed_saves=1)
    cfg, state = checkpointer.cfg, small_state()

    def no_space(*args, **kwargs):
        raise OSError(28, "No space left on device", "manifest.json")

    text = (
        f"checkpoint {tmp_path}/step_20 was not saved: No space left on device.\n  The newest finished step is step_10."
    )
    with monkeypatch.context() as patch:
        patch.setattr("dovetail.checkpoint._step.write_rest", no_space)
        calls = [
            checkpointer.wait,
            checkpointer.close,
            lambda: checkpointer.save(20, state, config=cfg),
            lambda: checkpointer.restore(state),
            lambda: checkpointer.discard_after(10),
        ]
        for call in calls:
            checkpointer.save(20, state, config=cfg)
            assert error_of(call, kind=CheckpointError) == text
            assert listed(tmp_path) == ["step_10"]
            checkpointer.wait()  # Reported once.
    assert [record.message for record in caplog.records if record.name.startswith("dovetail")] == [text] * len(calls)
    checkpointer.save(20, state, config=cfg)
    checkpointer.wait()
    assert checkpointer.steps() == [10, 20]


def test_the_end_of_a_block_reports_a_failed_save_but_hides_no_other_error(tmp_path, monkeypatch):
    cfg = config_in(tmp_path)
    monkeypatch.setattr("dovetail.checkpoint._step.write_rest", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(CheckpointError, match="was not saved: ZeroDivisionError"), cfg.build() as checkpointer:
        checkpointer.save(1, small_state(), config=cfg)

    def save_and_fail():
        with cfg.build() as checkpointer:
            checkpointer.save(1, small_state(), config=cfg)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        save_and_fail()


def test_a_state_that_cannot_be_saved_writes_nothing(tmp_path):
    checkpointer = config_in(tmp_path / "run").build()
    text = error_of(checkpointer.save, 1, {"n": np.int64(3)}, config=checkpointer.cfg)
    assert "'n' is of type numpy.int64, not a jax.Array" in text
    assert not (tmp_path / "run").exists()


def test_arguments_are_checked_before_anything_is_written(tmp_path):
    checkpointer = config_in(tmp_path).build()

    def problem(step=1, **kwargs):
        return error_of(checkpointer.save, step, small_state(), config=checkpointer.cfg, **kwargs)

    assert problem(data_state={1, 2}) == "data_state is not JSON data: Object of type set is not JSON serializable."
    changed = "data_state would not come back from JSON as it is: use lists, not tuples, and string keys."
    assert problem(data_state=(1, 2)) == problem(data_state={1: 2}) == changed
    assert problem(data_state=float("nan")).startswith("data_state is not JSON data: Out of range float values")
    assert problem(files={"a/b": b""}) == "files: expected plain file names, found 'a/b'."
    assert problem(files={"..": b""}) == "files: expected plain file names, found '..'."
    assert problem(files={"a": "text"}) == "files: expected bytes as the content of 'a', found str."
    assert problem(step=-1) == f"checkpoint {tmp_path}: a step is a number of 0 or more, found -1."
    assert listed(tmp_path) == []


def test_configs_are_checked(tmp_path):
    assert error_of(config_in(tmp_path, keep=0).build, path="trainer.checkpointer") == (
        "trainer.checkpointer.keep: expected a number of 1 or more, or None; found 0."
    )
    for url in ("ftp://host/run", "s3://bucket", "gs:///run"):
        assert error_of(Checkpointer.Config(directory=url).build) == (
            f"checkpointer.directory: expected a path, s3://BUCKET/NAME or gs://BUCKET/NAME, found {url!r}.\n"
            "  Other file systems: mount them, and give the path."
        )
    assert "directory: str" in error_of(Checkpointer.Config().build)


def test_a_directory_that_cannot_be_used_is_reported_before_training(tmp_path):
    (tmp_path / "notes.txt").touch()
    checkpointer = config_in(tmp_path).build()
    text = error_of(checkpointer.prepare)
    assert text.startswith(f"checkpoint directory {tmp_path} holds something else: 'notes.txt'.")
    assert error_of(checkpointer.save, 1, small_state(), config=checkpointer.cfg) == text
    assert listed(tmp_path) == ["notes.txt"]


def test_a_directory_that_vanishes_is_an_error_and_no_crash(tmp_path):
    checkpointer = save_steps(tmp_path / "run", 1, max_failed_saves=1)
    os.rename(tmp_path / "run", tmp_path / "elsewhere")
    text = error_of(checkpointer.save, 2, small_state(), config=checkpointer.cfg, kind=CheckpointError)
    assert text == (
        f"checkpoint {tmp_path}/run/step_2 was not saved: No such file or directory.\n  There is no finished step."
    )


def test_an_old_step_that_cannot_be_deleted_is_left(tmp_path, monkeypatch, caplog):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("dovetail.checkpoint._store_posix.discard", refuse)
    checkpointer = save_steps(tmp_path, 1, 2, keep=1)
    assert checkpointer.steps() == [1, 2]
    assert f"checkpoint {tmp_path}/step_1 is not deleted: Permission denied." in caplog.messages
