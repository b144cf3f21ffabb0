# SPDX-License-Identifier: Apache-2.0
"""In which order documents are read: a permutation for each epoch, computed from a seed, at any position at once."""

import functools
import hashlib

import numpy as np

_SORTED_UP_TO = 1 << 20  # Changing it changes the order of data sets in between: never.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def derive_seed(*parts: object) -> int:
    """Returns a 64-bit seed that depends on every part; near seeds give unrelated ones."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


class Order:
    """The order of `count` documents in each epoch.

    With `blocks`, the sizes of runs of documents, blocks are permuted, and the documents inside each of them.
    """

    def __init__(self, count: int, *, blocks: np.ndarray | None = None, shuffle: bool, seed: int) -> None:
        self._count, self._shuffle, self._seed = count, shuffle, seed
        self._blocks = np.array([count]) if blocks is None else blocks
        self._starts = np.cumsum(self._blocks) - self._blocks
        self._layouts: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, epoch: int, at: int) -> int:
        """Returns the document at place `at` of an epoch."""
        if not self._shuffle:
            return at
        order, ends = self._layout(epoch)
        rank = int(np.searchsorted(ends, at, side="right"))
        block = int(order[rank])
        size = int(self._blocks[block])
        within = at - (int(ends[rank]) - size)
        return int(self._starts[block]) + permuted(within, size, derive_seed(self._seed, epoch, block))

    def _layout(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the blocks in the order of an epoch, and the documents up to the end of each."""
        layout = self._layouts.get(epoch)
        if layout is None:
            order = permutation(len(self._blocks), derive_seed(self._seed, epoch))
            layout = order, np.cumsum(self._blocks[order])
            latest = [*self._layouts.items()][-1:]  # Streams that end an epoch need the old one a while longer.
            self._layouts = dict([*latest, (epoch, layout)])
        return layout


def permuted(index: int, size: int, seed: int) -> int:
    """Returns where a random permutation of `range(size)` takes `index`.

    Up to a million it is a sort by random keys. Above, Grain's permutation, which needs no memory; it is not used for
    all because it slows down on small sizes (14 ms for each index at a size of two).
    """
    if size <= _SORTED_UP_TO:
        return int(permutation(size, seed)[index])
    from grain.experimental import index_shuffle  # Here, because it imports JAX.

    return index_shuffle(index, max_index=size - 1, seed=seed % 2**32, rounds=4)


def permuted_all(size: int, seed: int) -> np.ndarray:
    """Returns where `permuted` takes each index."""
    if size <= _SORTED_UP_TO:
        return permutation(size, seed)
    return np.fromiter((permuted(index, size, seed) for index in range(size)), np.int64, size)


@functools.lru_cache(maxsize=16)
def permutation(size: int, seed: int) -> np.ndarray:
    """Returns a permutation of `range(size)`: sorted by the outputs of SplitMix64, which are all different.

    NumPy's own generators may change between versions, and a resumed run must find its place again.
    """
    keys = (np.arange(1, size + 1, dtype=np.uint64) * _GOLDEN) + np.uint64(seed)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(keys ^ (keys >> np.uint64(31))).astype(np.uint32)
