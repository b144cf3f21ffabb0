# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: what NumPy says they are, the same on every mesh, and different for any other bits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from checkpoint.helpers import mesh, sharded
from dovetail.checkpoint._fingerprint import _mesh, _sums_of_shards, fingerprint, to_text

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}


def print_of(x: jax.Array) -> str:
    found = fingerprint(x)
    assert found.replicas_agree()
    return to_text(found.local())


def mix_reference(x: int) -> int:
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16


def reference(words: np.ndarray) -> str:
    """Element by element, in Python's integers."""
    sums = [0, 0]
    for place in np.ndindex(words.shape):
        offset = sum(mix_reference((i + 0x9E3779B9 * (dim + 1)) % 2**32) for dim, i in enumerate(place))
        first = mix_reference(int(words[place]) ^ offset % 2**32)
        sums = [(sums[0] + first) % 2**32, (sums[1] + mix_reference(first ^ 0x85EBCA6B)) % 2**32]
    return f"{sums[0]:08x}{sums[1]:08x}"


@pytest.fixture(params=["devices", "host"], autouse=True)
def place(request, monkeypatch):
    """Where small shards of a CPU are read, as large ones of any device are or as they are."""
    if request.param == "devices":
        monkeypatch.setattr("dovetail.checkpoint._fingerprint._HOST_BYTES", 0)


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (3, 1, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint32", "float8_e4m3fn"])
def test_fingerprint_is_the_one_of_the_reference(shape, dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape) * 50).astype(dtype)
    assert print_of(x) == reference(np.asarray(x).view(WORDS[x.dtype.itemsize]).astype(np.uint32))


def test_words_of_64_bits_and_both_parts_of_complex_numbers_count():
    with jax.enable_x64(True):
        x = jnp.asarray([1.5, -2.0], jnp.float64)
        assert print_of(x) == reference(np.asarray(x).view(np.uint32).reshape(2, 2))
    z = jnp.asarray([1 + 2j, 3 - 1j], jnp.complex64)
    assert len({print_of(y) for y in (z, z.conj(), -z.conj(), z * 1j)}) == 4


def test_fingerprint_is_the_same_on_every_mesh():
    x = jax.random.normal(jax.random.key(0), (16, 8))
    want = print_of(x)
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        eight, grid = mesh(8, axis_type=axis_type), mesh(4, 2, axis_type=axis_type)
        for on, spec in [(eight, ("a",)), (eight, (None, "a")), (grid, ("b", "a")), (grid, (("a", "b"),)), (grid, ())]:
            assert print_of(sharded(x, *spec, on=on)) == want, (axis_type, spec)


def test_fingerprint_is_the_same_in_host_memory():
    x = jax.random.normal(jax.random.key(0), (16, 8))
    offloaded = jax.device_put(x, NamedSharding(mesh(8), P("a"), memory_kind="pinned_host"))
    assert offloaded.sharding.memory_kind == "pinned_host"
    assert print_of(offloaded) == print_of(x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "uint4", "int2", "float4_e2m1fn"])
def test_every_single_bit_counts(dtype):
    x = np.asarray(jnp.asarray([[0, 1, 1], [1, 0, 1]]).astype(dtype))
    size = 1 if dtype == "bool" else (jnp.finfo if "float" in dtype else jnp.iinfo)(dtype).bits
    seen = {print_of(jnp.asarray(x))}
    for element, bit in itertools.product(range(x.size), range(size)):
        changed = bytearray(x.tobytes())
        changed[element * x.itemsize + bit // 8] ^= 1 << bit % 8
        seen.add(print_of(jnp.asarray(np.frombuffer(bytes(changed), x.dtype).reshape(x.shape))))
    assert len(seen) == 1 + x.size * size


def test_places_count():
    x = jax.random.normal(jax.random.key(0), (16, 8))
    rows, columns = x[::-1], x[:, ::-1]
    assert len({print_of(y) for y in (x, rows, columns, x.T, x.reshape(8, 16), x.ravel())}) == 6
    assert print_of(jnp.zeros(3)) != print_of(jnp.zeros(4))


def test_fingerprint_of_keys_is_that_of_their_data():
    keys = jax.random.split(jax.random.key(0), 8)
    assert print_of(keys) == print_of(jax.random.key_data(keys))
    assert print_of(sharded(keys, "a", on=mesh(8))) == print_of(keys)


def test_replicas_that_differ_are_noticed():
    on = NamedSharding(mesh(2), P())
    copies = [
        jax.device_put(jnp.full(4, value), device) for value, device in zip([1.0, 2.0], jax.devices(), strict=False)
    ]
    assert not fingerprint(jax.make_array_from_single_device_arrays((4,), on, copies)).replicas_agree()


def test_an_array_may_be_donated_at_once():
    x = sharded(jax.random.normal(jax.random.key(0), (16, 8)), "a", on=mesh(8))
    want = print_of(x)
    found = fingerprint(x)
    jax.jit(lambda y: y * 2, donate_argnums=0)(x)
    assert x.is_deleted()
    assert to_text(found.local()) == want


def test_no_device_talks_to_another():
    """Collectives of many small programs at once can deadlock on CPUs, and would be in the way of the step's."""
    data, offsets = jax.ShapeDtypeStruct((16, 8), jnp.float32), jax.ShapeDtypeStruct((8, 2), jnp.uint32)
    program = _sums_of_shards(_mesh(tuple(jax.devices()))).lower(data, offsets).compile().as_text()
    assert "num_partitions=8" in program
    assert not [name for name in ("all-reduce", "all-gather", "all-to-all", "collective-permute") if name in program]


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_fingerprint_does_not_depend_on_the_mesh_in_force(axis_type):
    x = jax.random.normal(jax.random.key(0), (16, 8))
    want = print_of(x)
    with jax.set_mesh(mesh(4, 2, axis_type=axis_type)):
        assert print_of(x) == want
        assert print_of(sharded(x, "b", on=mesh(4, 2, axis_type=axis_type))) == want


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int8"])
def test_computed_later_of_data_that_was_donated_it_is_the_same(dtype):
    x = sharded(jnp.arange(1 << 18).reshape(512, -1).astype(dtype), "a", on=mesh(4, 2))
    now, later = fingerprint(x).local(), fingerprint(x, later=True)
    donated = jax.jit(lambda x: x * 0, donate_argnums=0)(x)
    jax.block_until_ready(donated)
    np.testing.assert_array_equal(later.local(), now)
