# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of arrays: 64 bits that change with any bit of the data, whatever the sharding.

Each element is hashed with its position and the hashes are added up, modulo 2**32, twice. Sums do not depend on their
order, so each device adds up its own shard, and the sums of the shards are added on the host: no device talks to
another. A change of one element always changes the fingerprint; one of several, except by a chance of one in 2**64.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_GOLDEN = 0x9E3779B9
_SECOND = 0x85EBCA6B
_DEVICES = "devices"
_HOST_BYTES = 1 << 16  # Of a shard that the CPU has anyway: NumPy is done before a program for its shape is compiled.


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of the shards that this process holds; dispatched, and awaited by its methods."""

    sums: Array | np.ndarray | Callable[[], np.ndarray]  # Two uint32 numbers for each shard.
    starts: tuple[tuple[int, ...], ...]  # Where each shard begins.
    is_first: tuple[bool, ...]  # Whether a shard is the first replica of its part of the array.

    @functools.cached_property
    def _rows(self) -> np.ndarray:
        return self.sums() if callable(self.sums) else np.asarray(self.sums)

    def local(self) -> np.ndarray:
        """Returns this process's share: the shares of all processes add up to the fingerprint of the array."""
        return self._rows[list(self.is_first)].sum(axis=0, dtype=np.uint32)

    def all_replicas(self) -> np.ndarray:
        """Returns the same of all replicas: if they are alike, all processes together have a multiple of it."""
        return self._rows.sum(axis=0, dtype=np.uint32)

    def replicas_agree(self) -> bool:
        """Whether shards that should be the same are."""
        known: dict[tuple[int, ...], bytes] = {}
        rows = zip(self.starts, self._rows, strict=True)
        return all(known.setdefault(start, row.tobytes()) == row.tobytes() for start, row in rows)


def fingerprint(x: Array, *, later: bool = False) -> Fingerprint:
    """Starts to compute the fingerprint of `x`, of any dtype, PRNG keys included.

    `x` may be donated at once. It is read once, on its devices, and no copy is made, but for small shards of a CPU.
    With `later`, a CPU computes that of large shards when it is asked for: it has the data and no time to lose now.
    Shards that are not the first replica are then left out.
    """
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    shards = x.addressable_shards
    starts = tuple(tuple(part.start or 0 for part in shard.index) for shard in shards)
    first = tuple(shard.replica_id == 0 for shard in shards)
    if not x.size or not shards:
        return Fingerprint(jnp.zeros((len(shards), 2), jnp.uint32), starts, first)
    if shards[0].device.platform == "cpu" and shards[0].data.nbytes <= _HOST_BYTES:
        sums = [_sums_on_host(np.array(each.data), start) for each, start in zip(shards, starts, strict=True)]
        return Fingerprint(np.stack(sums), starts, first)
    if later and shards[0].device.platform == "cpu":
        held = [(np.asarray(each.data), each.device) if own else None for each, own in zip(shards, first, strict=True)]
        return Fingerprint(lambda: _sums_of_held(held, starts), starts, first)
    # Whatever the sharding, the shards are side by side along the first dimension of an array of their own.
    mesh = _mesh(tuple(shard.device for shard in shards))
    rows = NamedSharding(mesh, P(_DEVICES) if x.ndim else P(), memory_kind=x.sharding.memory_kind)
    shape = (len(shards) * shards[0].data.shape[0], *shards[0].data.shape[1:]) if x.ndim else ()
    stacked = jax.make_array_from_single_device_arrays(shape, rows, [shard.data for shard in shards])
    if rows.memory_kind not in (None, "device"):  # Offloaded to the host: kernels cannot read it there.
        stacked = jax.device_put(stacked, rows.with_memory_kind("device"))
    with jax.set_mesh(mesh):  # In place of the one the caller may have set.
        return Fingerprint(_sums_of_shards(mesh)(stacked, _offsets(mesh, starts)), starts, first)


def shard_sums(x: Array) -> Array:
    """Returns two uint32 numbers that change with any bit of an array that a device has for itself.

    For compiled functions: what it holds of a larger array gets the same numbers wherever it lies.
    """
    parts = [x.real, x.imag] if jnp.iscomplexobj(x) else [x]
    return sum(
        (_hashed(_words(part), jnp.zeros(0, jnp.uint32), salt) for salt, part in enumerate(parts)), jnp.uint32(0)
    )


def to_text(numbers: np.ndarray) -> str:
    """Returns a fingerprint as 16 hexadecimal digits."""
    return "".join(f"{int(number):08x}" for number in numbers)


@functools.cache
def _mesh(devices: Sequence[Any]) -> Mesh:
    return Mesh(np.array(devices), (_DEVICES,))


def _sums_of_held(held: Sequence[tuple[np.ndarray, Any] | None], starts: Sequence[Sequence[int]]) -> np.ndarray:
    rows = np.zeros((len(held), 2), np.uint32)
    for row, shard, start in zip(rows, held, starts, strict=True):
        if shard is not None:
            data, device = shard  # JAX uses it where it is.
            row[:] = np.asarray(_sums_of_one(jax.device_put(data, device), jnp.array([start], jnp.uint32)))[0]
    return rows


@functools.cache
def _offsets(mesh: Mesh, starts: Sequence[Sequence[int]]) -> Array:
    return jax.device_put(np.array(starts, np.uint32).reshape(len(starts), -1), NamedSharding(mesh, P(_DEVICES)))


@functools.cache
def _sums_of_shards(mesh: Mesh) -> Any:
    def sums(x: Array, offsets: Array) -> Array:
        over_shards = jax.shard_map(
            _sums, mesh=mesh, in_specs=(P(_DEVICES) if x.ndim else P(), P(_DEVICES)), out_specs=P(_DEVICES)
        )
        return over_shards(x, offsets)

    return jax.jit(sums)


def _sums(x: Array, offsets: Array) -> Array:
    """Returns the two sums of one shard, as one row."""
    parts = [x.real, x.imag] if jnp.iscomplexobj(x) else [x]
    return sum((_hashed(_words(part), offsets[0], salt) for salt, part in enumerate(parts)), jnp.uint32(0))[None]


_sums_of_one = jax.jit(_sums)


def _words(x: Array) -> Array:
    """Returns the bits of real numbers as uint32, one word or, with one more dimension, two for each element."""
    bits, wider = _bits(x.dtype)
    x = x if wider is None else x.astype(wider)
    words = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint32}[bits]
    return jax.lax.bitcast_convert_type(x, words).astype(jnp.uint32)


def _bits(dtype: Any) -> tuple[int, Any]:
    """Returns the bits of a number, and the type to take its bits from if that is another."""
    if dtype == jnp.bool_:
        return 32, jnp.uint32
    floating = jnp.issubdtype(dtype, jnp.floating)
    bits = (jnp.finfo if floating else jnp.iinfo)(dtype).bits
    if bits < 8:  # Kept in a byte each; every value has its own float32 or int32.
        return 32, jnp.float32 if floating else jnp.int32
    return bits, None


def _hashed(words: Array, offsets: Array, salt: int) -> Array:
    place = jnp.uint32(salt)
    for dim in range(words.ndim):
        index = jax.lax.broadcasted_iota(jnp.uint32, words.shape, dim)
        if dim < len(offsets):  # Not for the two words of an element.
            index = index + offsets[dim]
        place = place + _mix(index + jnp.uint32(_GOLDEN * (dim + 1) % 2**32))
    first = _mix(words ^ place)
    second = _mix(first ^ jnp.uint32(_SECOND))
    # One pass for both sums: two `jnp.sum` would keep `first` in memory.
    zero, dims = np.uint32(0), tuple(range(words.ndim))
    return jnp.stack(jax.lax.reduce((first, second), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), dims))


def _mix(x: Any) -> Any:
    """A bijection of uint32 in which each bit of the input changes each bit of the result with probability 1/2.

    Reference: Chris Wellons, hash-prospector (lowbias32), 2018.
    """
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _sums_on_host(x: np.ndarray, starts: Sequence[int]) -> np.ndarray:
    """Returns what `_sums` does of one shard, by NumPy."""
    parts = [np.real(x).copy(), np.imag(x).copy()] if np.iscomplexobj(x) else [x]
    return sum((_hashed_on_host(part, starts, salt) for salt, part in enumerate(parts)), np.zeros(2, np.uint32))


def _hashed_on_host(x: np.ndarray, starts: Sequence[int], salt: int) -> np.ndarray:
    bits, wider = _bits(x.dtype)
    x = x if wider is None else x.astype(wider)
    words = x.view({1: np.uint8, 2: np.uint16}.get(x.itemsize, np.uint32)).astype(np.uint32)
    words = words.reshape(*x.shape, 2) if bits == 64 else words
    place = np.full(words.shape, salt, np.uint32)
    for dim, size in enumerate(words.shape):
        begin = _GOLDEN * (dim + 1) + (starts[dim] if dim < x.ndim else 0)
        mixed = _mix(np.arange(size, dtype=np.uint32) + np.uint32(begin % 2**32))
        place += np.expand_dims(mixed, [each for each in range(words.ndim) if each != dim])
    first = _mix((words ^ place).ravel())
    return np.array([each.sum(dtype=np.uint32) for each in (first, _mix(first ^ np.uint32(_SECOND)))])
