# SPDX-License-Identifier: Apache-2.0
"""Which part of a sequence each device works on, so that all have as much to do."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError
from dovetail.ops import Mask, Part, Parts


@dataclass(frozen=True)
class SequenceSplit:
    """The parts that the devices along a mesh axis work on; the sequence itself lies on them in order.

    For a causal mask, where late tokens see much and early ones little, the sequence is cut into two pieces for each
    of n devices, and device i works on pieces i and 2n - 1 - i. Together they see as much as those of any other device.
    A length that is no multiple of 2n, which cannot be cut like that, stays in order.
    """

    axis: str
    parts: tuple[Part, ...]  # Of each device, in order.

    def here(self) -> Parts:
        """Returns the parts with the one of this device; inside a shard_map."""
        return Parts(self.parts, jax.lax.axis_index(self.axis))

    def send(self, tree: Any) -> Any:
        """Brings tokens, `[B, T, ...]`, to the device that works on them."""
        return self._exchange(tree, backwards=False)

    def bring_back(self, tree: Any) -> Any:
        """Undoes `send`."""
        return self._exchange(tree, backwards=True)

    def _exchange(self, tree: Any, backwards: bool) -> Any:
        devices = len(self.parts)
        if len(self.parts[0].starts) == 1:
            return tree
        # Half h of device i is piece 2i + h. A device gets one piece of each kind, and an odd one the late piece first.
        moves = [[(i, _worker(2 * i + half, devices)) for i in range(devices)] for half in range(2)]
        moves = [[(b, a) for a, b in each] for each in moves] if backwards else moves
        odd = jax.lax.axis_index(self.axis) % 2 == 1

        def in_turn(a: Array, b: Array) -> tuple[Array, Array]:
            return jnp.where(odd, b, a), jnp.where(odd, a, b)

        def one(x: Array) -> Array:
            halves = jnp.split(x, 2, axis=1)
            halves = in_turn(*halves) if backwards else halves
            halves = [jax.lax.ppermute(half, self.axis, to) for half, to in zip(halves, moves, strict=True)]
            return jnp.concatenate(halves if backwards else in_turn(*halves), axis=1)

        return jax.tree.map(one, tree)


def split_sequence(mask: Mask, length: int, axis: str, devices: int, *, balanced: bool, where: str) -> SequenceSplit:
    """Returns parts in order, or balanced ones where the mask makes these less work for the busiest device."""
    in_order = [(2 * i, 2 * i + 1) for i in range(devices)]
    even = [(i, 2 * devices - 1 - i) for i in range(devices)]
    if length % devices:
        low = length // devices * devices
        sizes = " or ".join(str(size) for size in (low, low + devices) if size)
        raise ConfigError(
            f"{where}: a sequence of {length} tokens cannot be cut into {devices} equal pieces, one for each of the "
            f"devices along the mesh axis {axis!r}.\n  Use a length of {sizes}."
        )
    balanced = balanced and length % (2 * devices) == 0 and _work(mask, length, even) < _work(mask, length, in_order)
    pieces = 2 * devices if balanced else devices
    size, dealt = length // pieces, even if balanced else [(i,) for i in range(devices)]
    return SequenceSplit(axis, tuple(Part(tuple(size * piece for piece in each), size) for each in dealt))


def _worker(piece: int, devices: int) -> int:
    return min(piece, 2 * devices - 1 - piece)


def _work(mask: Mask, length: int, dealt: list[tuple[int, int]]) -> int:
    """Returns how many keys the pieces of the busiest device see, as far as the mask's bounds tell."""

    def keys(piece: int) -> int:
        start, stop = (length * at // (2 * len(dealt)) for at in (piece, piece + 1))
        low, high = mask.keys_for(start, stop, length)
        return max(high - low, 0)

    return max(sum(map(keys, pair)) for pair in dealt)
