# SPDX-License-Identifier: Apache-2.0
"""A store of objects that errs, stalls, loses answers or is not there; and two processes that use one together."""

import contextlib
import socket

import pytest

from checkpoint.helpers import abstract, assert_identical, config_in, save_steps, small_state, start_python
from dovetail.checkpoint import CheckpointError, _lease
from dovetail.config import ConfigError
from dovetail.storage import Objects, _objects


@pytest.fixture(autouse=True)
def _seldom(monkeypatch):
    monkeypatch.setattr(_lease, "EVERY", 1e9)  # Else faults would meet the lease, now and then.


@pytest.mark.parametrize("fault", ["503", *(pytest.param(each, marks=pytest.mark.slow) for each in ("500", "reset"))])
def test_errors_that_pass_are_tried_again(bucket, proxy, fault):
    checkpointer = save_steps(bucket, 1)
    for step, part in enumerate(("/arrays/", "+size", "config.json", "finished/"), start=2):
        proxy.times(1, fault, part)
        checkpointer.save(step, small_state(step), config=checkpointer.cfg)
        checkpointer.wait()
    proxy.times(1, fault, "/arrays/")
    assert_identical(checkpointer.restore(abstract(small_state()), 3).state, small_state(3))


@pytest.mark.long  # A transfer that stands still is broken off after 20 s.
def test_a_step_whose_mark_was_written_but_not_acknowledged_is_saved(bucket, proxy):
    checkpointer = save_steps(bucket, 1)
    proxy.times(1, "lost", "finished/step_2")
    checkpointer.save(2, small_state(2), config=checkpointer.cfg)
    checkpointer.wait()
    assert checkpointer.steps() == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("part", ["/arrays/", "finished/step_2.json"])
def test_a_store_that_stalls_ends_the_save_within_a_time_and_the_next_one_is_made(bucket, proxy, monkeypatch, part):
    checkpointer = save_steps(bucket, 1, request_seconds=1.0)
    proxy.fault = lambda method, path: "stall" if part in path and method == "PUT" else None
    checkpointer.save(2, small_state(2), config=checkpointer.cfg)
    with pytest.raises(CheckpointError, match=r"step_2 was not saved: s3://.*: no answer within 1 seconds"):
        checkpointer.wait()
    proxy.fault = lambda method, path: None
    assert_identical(checkpointer.restore(abstract(small_state())).state, small_state(1))
    checkpointer.save(3, small_state(3), config=checkpointer.cfg)
    checkpointer.wait()
    assert_identical(checkpointer.restore(abstract(small_state())).state, small_state(3))


def test_an_outage_is_no_damage_and_no_older_step_is_taken(bucket, proxy, monkeypatch):
    monkeypatch.setitem(_objects._RETRIES, "max_retries", 1)
    checkpointer = save_steps(bucket, 1, 2)
    proxy.fault = lambda method, path: "503" if "/arrays/" in path and method == "GET" else None
    with pytest.raises(CheckpointError, match=r"UNAVAILABLE|503") as e:
        checkpointer.restore(abstract(small_state()))
    assert type(e.value) is CheckpointError


def test_a_bucket_or_server_that_is_not_there_is_said_before_training(bucket, monkeypatch):
    with pytest.raises(
        ConfigError, match=r"checkpoint directory s3://absent/run cannot be written: (.|\n)*bucket must"
    ):
        config_in("s3://absent/run").build().prepare()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setitem(_objects._RETRIES, "max_retries", 1)
        with pytest.raises(
            ConfigError, match=r"cannot be written(.|\n)*Keys, region and endpoint of S3 come from AWS_"
        ):
            config_in(bucket).build().prepare()


def test_what_is_in_the_making_elsewhere_costs_no_listing_of_data(bucket, proxy):
    save_steps(bucket, 1, 2).close()
    proxy.requests.clear()
    with config_in(bucket).build() as checkpointer:
        checkpointer.prepare()
    assert not any("prefix" in each and "data" in each for each in proxy.requests)


def test_a_mark_that_is_damaged_is_no_step_to_restore_and_its_data_is_left(bucket):
    checkpointer = save_steps(bucket, 1, 2)
    objects = Objects(bucket, where="test")
    mark = objects.read("finished/step_2.json")
    assert mark is not None
    objects.write("finished/step_2.json", mark[:100])
    restored = checkpointer.restore(abstract(small_state()))
    assert restored.step == 1
    assert "step_2 is damaged:\n  manifest.json: " in restored.skipped[2]
    checkpointer.save(2, small_state(5), config=checkpointer.cfg)
    assert_identical(checkpointer.restore(abstract(small_state())).state, small_state(5))
    assert len(objects.keys("corrupt/")) == 1


PROGRAM = """
import sys
import jax
rank, port, place = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
import numpy as np
from checkpoint.helpers import assert_identical, config_in
from jax.sharding import NamedSharding, PartitionSpec as P

weight = np.arange(64, dtype=np.float32).reshape(8, 8)
def put(mesh, *spec):
    return jax.make_array_from_callback(weight.shape, NamedSharding(mesh, P(*spec)), lambda index: weight[index])
grid = jax.make_mesh((2, 2), ("a", "b"))
state = {"w": put(grid, "a", "b"), "r": put(grid, None, "b"), "all": put(grid)}
cfg = config_in(place)
with cfg.build() as checkpointer:
    for step in (1, 2):
        checkpointer.save(step, state, config=cfg, data_state={"at": step})
    checkpointer.wait()
    other = jax.make_mesh((4,), ("c",))
    wanted = {"w": put(other, None, "c"), "r": put(other, "c"), "all": put(other)}
    restored = checkpointer.restore(wanted)
    for name, leaf in restored.state.items():
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, weight[shard.index])
    print("restored", restored.step, restored.data_state["at"], flush=True)
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_two_processes_save_and_restore_together(bucket):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    processes = [start_python(PROGRAM, str(rank), port, bucket, JAX_NUM_CPU_DEVICES="2") for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(OSError):
                process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all("restored 2 2\n" in out for out, _ in outputs)
    assert config_in(bucket).build().steps() == [1, 2]
