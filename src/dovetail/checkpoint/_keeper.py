# SPDX-License-Identifier: Apache-2.0
"""`Keeper`: copies what this process keeps of a state to its host, and puts it where it is kept, in the background."""

import functools
import logging
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._fingerprint import Fingerprint, fingerprint
from ._leaves import LeafInfo, describe
from ._parts import Keep, Part, Piece, Starts, laid_out, shared_out
from ._places import Places

_log = logging.getLogger(__name__)
# Keeps of a gang that stay. A process begins with one when all have made the step before, thus when all are done with
# the one before the last: of three, the oldest is complete, however far the processes are apart.
_STAY = 3


class _Block(NamedTuple):
    """A block that this process keeps of a leaf, and the device that it takes it from."""

    leaf: str
    device: Any
    start: Starts
    shape: tuple[int, ...]


class Keeper:
    """Keeps the steps of one gang. All processes call it at the same steps, from one thread."""

    def __init__(self, gang: str) -> None:
        self.gang, self._number = gang, 0
        self._thread: threading.Thread | None = None
        self._made: dict[Places, list[Keep]] = {}
        self._buffer = np.empty(0, np.uint8)  # Of the host, used again and again: new memory is slow to get.
        self._said: set[str] = set()

    def keep(
        self, step: int, leaves: Mapping[str, Array], places: Sequence[Places], *, position: Any, config: str
    ) -> None:
        """Copies what this process keeps of the leaves to its host, and starts to put it in its places.

        The leaves may be donated as soon as this returns. First waits for the keep before this one.
        """
        self.wait()
        self._number += 1
        keep = Keep(self.gang, self._number, step, jax.process_count())
        infos = {path: describe(leaf) for path, leaf in leaves.items()}
        stored = {path: numbers(leaf) for path, leaf in leaves.items()}
        blocks = _blocks(tuple((path, x.shape, x.dtype.itemsize, x.sharding) for path, x in stored.items()))
        shards = [_shard(stored[block.leaf], block.device)[1] for block in blocks]
        for shard in shards:
            shard.copy_to_host_async()
        pieces, size = laid_out((b.leaf, b.start, b.shape, stored[b.leaf].dtype.itemsize) for b in blocks)
        if len(self._buffer) != size:
            self._buffer = np.zeros(size, np.uint8)
        for shard, piece in zip(shards, pieces, strict=True):
            _copy(shard, self._buffer, piece)
        # After the copies: nobody waits for it.
        prints = {path: fingerprint(stored[path]) for path in dict.fromkeys(block.leaf for block in blocks)}
        rows = [_shard(stored[block.leaf], block.device)[0] for block in blocks]
        work = _Work(keep, infos, pieces, rows, prints, position, config)
        # Nobody has to wait for it: a process that ends has saved to the store, or was ended by an error.
        self._thread = threading.Thread(target=self._put, args=(work, list(places)), name=f"keep {step}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until what was copied is where it is kept, or was refused there."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _put(self, work: "_Work", places: Sequence[Places]) -> None:
        rank = jax.process_index()
        try:
            data = self._buffer.data
            blobs = {work.keep.data(rank): data, work.keep.contents(rank): work.part(data).to_bytes()}
            for each in places:
                for text in each.put(blobs):
                    self._say(f"step {work.keep.step} is not kept in {each.what} of {text}")
                self._forget(each, work.keep, rank)
        except Exception as e:  # Training goes on: the store has what it needs, and the log says so.
            self._say(f"step {work.keep.step} is not kept: {type(e).__name__}: {e}")

    def _forget(self, places: Places, keep: Keep, rank: int) -> None:
        """Drops what is not needed any more now that a keep is there."""
        made = self._made.setdefault(places, [])
        made.append(keep)
        if self._number >= _STAY and len(made) == _STAY:  # The first of this gang that is known to be complete.
            places.drop_all(lambda name: not name.startswith(f"{self.gang}."))
        if len(made) > _STAY:
            places.drop(made.pop(0).blobs(rank))

    def _say(self, text: str) -> None:
        kind = text.partition(": ")[2] or text
        if kind not in self._said:  # Once for each reason, not at every keep.
            self._said.add(kind)
            _log.warning("%s", text)


class _Work(NamedTuple):
    """What is left to do of a keep when its bytes are on the host."""

    keep: Keep
    infos: Mapping[str, LeafInfo]
    pieces: Sequence[Piece]
    rows: Sequence[int]  # Of the fingerprint of its leaf, for each piece.
    prints: Mapping[str, Fingerprint]
    position: Any
    config: str

    def part(self, data: memoryview) -> Part:
        """Returns the part, with the sums of its bytes."""
        summed = [p._replace(crc=zlib.crc32(data[p.offset : p.offset + p.size])) for p in self.pieces]
        totals: dict[str, Sequence[int]] = {}
        for path, found in self.prints.items():
            rows = [row for piece, row in zip(self.pieces, self.rows, strict=True) if piece.leaf == path]
            totals[path] = np.asarray(found.sums)[rows].sum(axis=0, dtype=np.uint32).tolist()
        return Part(self.infos, summed, totals, self.position, self.config)


def numbers(leaf: Array) -> Array:
    """Returns a leaf as an array that NumPy knows: PRNG keys as numbers."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _shard(x: Array, device: Any) -> tuple[int, Array]:
    """Returns the shard of an array on a device, and which one it is."""
    return next((number, each.data) for number, each in enumerate(x.addressable_shards) if each.device == device)


def _copy(x: Array, buffer: np.ndarray, piece: Piece) -> None:
    target = buffer[piece.offset : piece.offset + piece.size].view(x.dtype).reshape(piece.shape)
    np.copyto(target, np.asarray(x))


@functools.lru_cache(maxsize=4)
def _blocks(leaves: tuple[tuple[str, tuple[int, ...], int, Any], ...]) -> list[_Block]:
    """Returns the blocks that this process keeps of leaves with a path, shape, bytes an element, and sharding.

    Each block is kept by one of the processes that have it. Who that is follows from the shardings alone.
    """
    sizes: dict[tuple[str, Starts], int] = {}
    holders: dict[tuple[str, Starts], list[int]] = {}
    for path, shape, width, sharding in leaves:
        size = width * int(np.prod(sharding.shard_shape(shape)))
        for device, index in sharding.devices_indices_map(shape).items() if size else ():
            block = (path, tuple(part.indices(length)[0] for part, length in zip(index, shape, strict=True)))
            sizes[block] = size
            ranks = holders.setdefault(block, [])
            if device.process_index not in ranks:
                ranks.append(device.process_index)
    owners, found = shared_out(sizes, {block: sorted(ranks) for block, ranks in holders.items()}), list[_Block]()
    for path, shape, _, sharding in leaves:
        part, seen = sharding.shard_shape(shape), set[Starts]()
        for device, index in sharding.addressable_devices_indices_map(shape).items():
            start = tuple(each.indices(length)[0] for each, length in zip(index, shape, strict=True))
            if start not in seen and owners.get((path, start)) == jax.process_index():
                found.append(_Block(path, device, start, part))
            seen.add(start)
    return found
