# SPDX-License-Identifier: Apache-2.0
"""Arrays on disk: every dtype, every layout and every odd name comes back with the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from checkpoint.helpers import abstract, assert_identical, config_in, mesh, sharded
from dovetail.checkpoint import CheckpointError

DTYPES = ["bool", "int8", "uint16", "uint32", "bfloat16", "float16", "float32", "complex64"]
DTYPES += ["int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float8_e4m3", "float8_e4m3fn", "float8_e8m0fnu"]


def round_trip(directory, state, wanted=None, **fields):
    cfg = config_in(directory, **fields)
    with cfg.build() as checkpointer:
        checkpointer.save(1, state, config=cfg)
        return checkpointer.restore(abstract(state) if wanted is None else wanted).state


def test_every_dtype_comes_back(tmp_path):
    rng = np.random.default_rng(0)
    bytes_ = rng.integers(0, 256, (8, 32), np.uint8)
    state = {}
    for i, dtype in enumerate(DTYPES):
        values = rng.integers(0, 2, (8, 4)) if dtype in ("bool", "int2", "uint2") else rng.integers(0, 7, (8, 4))
        array = values.astype(jnp.dtype(dtype))
        state[dtype] = sharded(array, "a", on=mesh(8)) if i % 3 == 0 else jnp.asarray(array)
    for dtype in ("float32", "bfloat16", "float16"):  # Any bits: NaNs with their payload, infinities, denormals.
        state[f"bits_{dtype}"] = jnp.asarray(bytes_.view(jnp.dtype(dtype)))
    state |= {"scalar": jnp.bfloat16(1.5), "empty": jnp.zeros((0, 4), jnp.int8), "weak": jnp.asarray(1)}
    state["keys"] = sharded(jax.random.split(jax.random.key(0), 8), "a", on=mesh(8))
    state |= {"rbg": jax.random.key(1, impl="rbg"), "no_keys": state["keys"][:0]}
    restored = round_trip(tmp_path, state)
    assert_identical(restored, state)
    for name, leaf in restored.items():
        assert leaf.sharding.is_equivalent_to(state[name].sharding, leaf.ndim), name
    assert jax.random.uniform(restored["rbg"]) == jax.random.uniform(state["rbg"])


def test_64_bits_come_back(tmp_path):
    jax.config.update("jax_enable_x64", True)  # For all threads, those of Orbax too.
    try:
        state = {"a": jnp.asarray([1.1, 2.2], jnp.float64), "b": jnp.asarray([2**40, -1], jnp.int64)}
        assert_identical(round_trip(tmp_path, state), state)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_a_state_moves_from_8_devices_to_a_grid_to_one(tmp_path):
    eight, grid = mesh(8), mesh(4, 2)
    weight = jax.random.normal(jax.random.key(0), (16, 8))
    keys = jax.random.split(jax.random.key(1), 8)
    state = {"w": sharded(weight, "a", on=eight), "r": sharded(weight, on=eight), "k": keys}
    like = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in state.items()}

    def on(**shardings):
        return {name: like[name].update(sharding=sharding) for name, sharding in shardings.items()}

    rows, turned, whole = NamedSharding(grid, P("a")), NamedSharding(grid, P("b", "a")), NamedSharding(grid, P())
    one = SingleDeviceSharding(jax.devices()[3])
    on_grid = round_trip(tmp_path / "1", state, on(w=turned, r=rows, k=rows))
    on_one = round_trip(tmp_path / "2", on_grid, on(w=one, r=one, k=one))
    back = round_trip(tmp_path / "3", on_one, on(w=NamedSharding(eight, P(None, "a")), r=whole, k=rows))
    for got in (on_grid, on_one, back):
        assert_identical(got, state)
    assert on_grid["w"].sharding == turned
    assert {shard.data.shape for shard in on_grid["w"].addressable_shards} == {(8, 2)}
    assert [leaf.devices() for leaf in jax.tree.leaves(on_one)] == [{jax.devices()[3]}] * 3


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_meshes_in_force_and_explicit_axes_make_no_difference(tmp_path, axis_type):
    on = mesh(4, 2, axis_type=axis_type)
    state = {
        "w": sharded(jnp.arange(128.0).reshape(16, 8), "a", "b", on=on),
        "q": sharded(jnp.arange(16).astype(jnp.uint4), "b", on=on),
        "k": sharded(jax.random.split(jax.random.key(0), 8), "b", on=on),
    }
    with jax.set_mesh(on):
        restored = round_trip(tmp_path, state)
    assert_identical(restored, state)
    assert [restored[name].sharding for name in state] == [state[name].sharding for name in state]


def test_arrays_in_host_memory_come_back_there(tmp_path):
    there = NamedSharding(mesh(8), P("a"), memory_kind="pinned_host")
    state = {"w": jax.device_put(jnp.arange(128.0).reshape(16, 8), there)}
    restored = round_trip(tmp_path, state)
    assert_identical(restored, state)
    assert restored["w"].sharding.memory_kind == "pinned_host"


def test_leaves_without_a_sharding_go_to_the_default_device(tmp_path):
    restored = round_trip(tmp_path, {"w": jnp.ones(3)}, {"w": jax.ShapeDtypeStruct((3,), jnp.float32)})
    assert restored["w"].devices() == {jax.devices()[0]}


def test_odd_names_are_names(tmp_path):
    names = ["", ".", "..", "/", "a/b", "a.b", "a", "%2F", "é", "\n", "\0", "x" * 300, "['a']", "zarr.json", "(root)"]
    state: dict = {name: jnp.full(3, float(i)) for i, name in enumerate(names)}
    state["deep"] = {"a": {"b": jnp.ones(3)}}
    assert_identical(round_trip(tmp_path, state), state)


def test_compressed_arrays_come_back_from_smaller_files(tmp_path):
    state = {"w": jnp.zeros((256, 256))}
    size = {}
    for compress in (False, True):
        assert_identical(round_trip(tmp_path / str(compress), state, compress=compress), state)
        size[compress] = sum(file.stat().st_size for file in (tmp_path / str(compress)).rglob("*"))
    assert size[True] < 0.2 * size[False]


def test_files_that_are_fine_but_cannot_be_read_are_not_called_damaged(tmp_path, monkeypatch):
    cfg = config_in(tmp_path)
    checkpointer = cfg.build()
    checkpointer.save(1, {"w": jnp.ones(3)}, config=cfg)

    def fail(*_):
        raise MemoryError("out of memory\nin detail")

    monkeypatch.setattr("dovetail.checkpoint._arrays.read_parts", fail)
    with pytest.raises(CheckpointError) as e:
        checkpointer.restore({"w": jnp.ones(3)})
    assert str(e.value) == (
        f"checkpoint {tmp_path}/step_1 cannot be read, although its files are as they were written:\n"
        f"  MemoryError: out of memory"
    )
