# SPDX-License-Identifier: Apache-2.0
"""Tiers in one process, with two hosts that hold memory: the newest that is good comes back, onto any mesh."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dovetail.blobs import MEMORY, SLOT, SPARES, TOKEN, Client, Memory, Server
from dovetail.checkpoint import Checkpointer, Tiers
from dovetail.checkpoint._parts import keep_of
from dovetail.config import ConfigBase, ConfigError
from support.kept import change


class RunConfig(ConfigBase):
    width: int = 8


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Client]]:
    """The memory of this host, and of a spare one."""
    with Server(Memory(), host="127.0.0.1", token="t") as own, Server(Memory(), host="127.0.0.1", token="t") as spare:
        given = {SLOT: "0", MEMORY: own.address, TOKEN: "t", SPARES: json.dumps({"7": spare.address})}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        yield [Client(own.address, "t"), Client(spare.address, "t")]


def mesh(*shape: int) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def state(seed: int, devices: jax.sharding.Mesh) -> dict:
    key = jax.random.key(seed)
    arrays = {
        "matrix": jax.random.normal(key, (8, 16)),
        "half": jax.random.normal(key, (16,), jnp.bfloat16),
        "number": jnp.int32(seed),
        "key": jax.random.key(seed),
        "none": jnp.zeros((0, 4)),
        "eighth": jax.random.normal(key, (4, 8)).astype(jnp.float8_e4m3fn),
    }
    places = {"matrix": P("a", "b"), "half": P("b"), "eighth": P(None, "a")}
    return {name: jax.device_put(x, NamedSharding(devices, places.get(name, P()))) for name, x in arrays.items()}


def abstract(of: dict) -> dict:
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in of.items()}


def check_same(a: dict, b: dict) -> None:
    for name, x in b.items():
        assert a[name].dtype == x.dtype, name
        assert a[name].sharding.is_equivalent_to(x.sharding, x.ndim), name
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, other = jax.random.key_data(x), jax.random.key_data(a[name])
        else:
            other = a[name]
        np.testing.assert_array_equal(np.asarray(other), np.asarray(x))


class Run:
    """A run that keeps and saves, and may begin anew."""

    def __init__(self, directory: Path, **fields) -> None:
        self.store: Checkpointer = Checkpointer.Config(directory=str(directory / "checkpoints")).build()
        self.tiers: Tiers = Tiers.Config(**fields).build(store=self.store, run=str(directory))
        self.newest = self.tiers.look()

    def keep(self, step: int, of: dict) -> None:
        assert self.tiers.is_due(step)
        self.tiers.keep(step, of, position={"step": step}, config=RunConfig())
        self.tiers.close()

    def save(self, step: int, of: dict) -> None:
        self.store.save(step, of, config=RunConfig(), data_state={"step": step})
        self.store.wait()


def test_what_was_kept_comes_back_on_another_mesh_bit_for_bit(hosts, tmp_path):
    run = Run(tmp_path, memory_every=5)
    assert not run.tiers.is_due(4)
    run.keep(5, state(0, mesh(4, 2)))
    for devices in (mesh(2, 4), mesh(1, 2), mesh(4, 2)):
        again = Run(tmp_path, memory_every=5)
        assert again.newest == 5
        assert again.tiers.config()[0] == 5
        want = state(0, devices)
        found = again.tiers.recover(abstract(want))
        assert found is not None
        assert (found.step, list(found.positions), found.source) == (5, [{"step": 5}], "the memory of host 0")
        check_same(found.state, want)
    hosts[0].drop(hosts[0].sizes())
    found = Run(tmp_path, memory_every=5).tiers.recover(abstract(state(0, mesh(2, 2))))
    assert found is not None
    assert found.source == "the memory of host 7"


def test_the_state_may_be_donated_at_once(hosts, tmp_path):
    run, step = Run(tmp_path, memory_every=1), jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    big = {"x": jax.device_put(jnp.zeros((512, 512)), NamedSharding(mesh(4, 2), P("a", "b")))}
    values = []
    for number in range(1, 5):
        big = {"x": step(big["x"])}
        values.append(np.array(big["x"]))
        run.tiers.keep(number, big, position={}, config=RunConfig())
    big = {"x": step(big["x"])}
    found = Run(tmp_path, memory_every=1).tiers.recover(abstract(big)) if run.tiers.close() is None else None
    assert found is not None
    assert found.step == 4
    np.testing.assert_array_equal(np.asarray(found.state["x"]), values[-1])


def test_the_newest_wins_and_the_fastest_of_the_same_step(hosts, tmp_path):
    first, second, third = (state(seed, mesh(2, 2)) for seed in range(3))
    run = Run(tmp_path, memory_every=1, disk=str(tmp_path / "disk"), disk_every=2)
    run.save(1, first)
    run.keep(2, second)
    found = Run(tmp_path, memory_every=1, disk=str(tmp_path / "disk")).tiers.recover(abstract(first))
    assert found is not None
    assert (found.step, found.source) == (2, "the memory of host 0")
    for host in hosts:
        host.drop(host.sizes())
    found = Run(tmp_path, memory_every=1, disk=str(tmp_path / "disk")).tiers.recover(abstract(first))
    assert found is not None
    assert (found.step, found.source) == (2, "the local disk of host 0")
    check_same(found.state, second)
    run.save(3, third)
    last = Run(tmp_path, memory_every=1, disk=str(tmp_path / "disk"))
    found = last.tiers.recover(abstract(first))
    assert found is not None
    assert (found.step, found.source) == (3, "")
    check_same(found.state, third)
    assert not list((tmp_path / "disk").rglob("*.data"))  # Of a history that is over.


@pytest.mark.parametrize(
    "changed, step, source, said",
    [
        ([(0, 3)], 3, "the memory of hosts 0 and 7", r"host 0: .* has crc32 \w+, \w+ was kept; another host has it"),
        ([(0, 3), (1, 3)], 2, "the memory of host 0", r"step 3 in the memory of hosts 0 and 7 is passed over: part 0"),
        ([(0, 3), (1, 3), (0, 2), (1, 2)], 1, "", r"step 2 in the memory of hosts 0 and 7 is passed over: part 0"),
    ],
    ids=["another copy", "an older step", "the store"],
)
def test_what_has_changed_is_passed_over_for(hosts, tmp_path, caplog, changed, step, source, said):
    caplog.set_level(logging.WARNING)
    want = [state(seed, mesh(2, 2)) for seed in range(4)]
    run = Run(tmp_path, memory_every=1)
    run.save(1, want[1])
    run.keep(2, want[2])
    run.keep(3, want[3])
    for host, which in changed:
        change(hosts[host], which)
    found = Run(tmp_path, memory_every=1).tiers.recover(abstract(want[0]))
    assert found is not None
    assert (found.step, found.source) == (step, source)
    check_same(found.state, want[step])
    assert any(re.search(said, record.message, re.DOTALL) for record in caplog.records)
    kept = {keep.step for host in hosts for name in host.sizes() if (keep := keep_of(name))}
    assert kept == ({step} if source else set())  # The rest is of a history that is over.


def test_three_keeps_stay_and_those_of_a_gang_that_is_over_go_when_the_new_one_has_as_many(hosts, tmp_path):
    def steps() -> list[int]:
        return sorted({keep.step for host in hosts for name in host.sizes() if (keep := keep_of(name))})

    want = state(0, mesh(2, 2))
    run = Run(tmp_path, memory_every=1)
    for number in range(1, 6):
        run.keep(number, want)
    assert steps() == [3, 4, 5]
    again = Run(tmp_path, memory_every=1)
    assert again.tiers.recover(abstract(want)) is not None
    assert steps() == [5]
    again.keep(6, want)
    again.keep(7, want)
    assert steps() == [5, 6, 7]
    again.keep(8, want)
    assert steps() == [6, 7, 8]
    again.tiers.restart()
    assert steps() == []
    again.keep(7, want)
    assert steps() == [7]
    again.tiers.finish()
    assert steps() == []


def test_a_host_that_takes_nothing_is_named_once_and_training_goes_on(hosts, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(SPARES, json.dumps({"7": "127.0.0.1:9"}))
    run = Run(tmp_path, memory_every=1)
    run.keep(1, state(0, mesh(2, 2)))
    run.keep(2, state(0, mesh(2, 2)))
    said = [record.message for record in caplog.records]
    assert said == ["step 1 is not kept in the memory of host 7: 127.0.0.1:9: [Errno 111] Connection refused"]
    assert Run(tmp_path, memory_every=1).newest == 2


def test_without_a_supervisor_or_enough_hosts_it_says_so_and_goes_on(hosts, tmp_path, monkeypatch):
    monkeypatch.delenv(SPARES)
    assert Run(tmp_path, memory_every=1).tiers.about == (
        "The state is kept in the memory of 1 host, not 2: there are no more."
    )
    monkeypatch.delenv(MEMORY)
    run = Run(tmp_path, memory_every=1)
    assert run.tiers.about == "Nothing is kept in the memory of hosts: that needs `dovetail launch`."
    assert (run.newest, run.tiers.is_due(1)) == (None, False)
    assert run.tiers.recover({}) is None


def test_what_makes_no_sense_is_refused(tmp_path):
    store = Checkpointer.Config(directory=str(tmp_path)).build()
    with pytest.raises(ConfigError, match=r"tiers\.memory_every is 0, expected at least 1\."):
        Tiers.Config(memory_every=0).build(store=store, run="r")
    (tmp_path / "file").touch()
    tiers = Tiers.Config(disk=str(tmp_path / "file")).build(store=store, run="r")
    with pytest.raises(ConfigError, match=r"tiers\.disk: .* cannot be made: Not a directory\. Choose another"):
        tiers.look()
