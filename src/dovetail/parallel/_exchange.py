# SPDX-License-Identifier: Apache-2.0
"""The exchange of rows between the devices that hold experts: out to the experts, and back.

Everything here runs inside `jax.shard_map`, on each device's own part. Of E experts, the first E / n are on the first
of n devices, and so on.

Shapes are fixed when a program is compiled, but how many rows go where is only known when it runs. So rows travel in
rounds, in each of which every device sends room for so many rows to every other: if experts get about the same, one
round is enough, and if they do not, there are as many as it takes. No row is lost.

Shape letters: M rows of a device, D their dim, E experts, n devices, c rows that a device sends another in one round.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.ops import permute_rows, rarely, row_groups

from ._pipeline import largest_of_stages

Run = Callable[[Array, Array], Array]  # Maps rows sorted by expert and how many each has, `[E / n]`, to as many rows.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Exchange:
    """Who sends how many rows to whom, agreed on by all devices."""

    axes: tuple[str, ...] = dataclasses.field(metadata={"static": True})  # Mesh axes of the devices that hold experts.
    room: int = dataclasses.field(metadata={"static": True})  # c: rows from one device to another in one round.
    leaving: Array  # `[n, E / n]`: how many of the rows here go to each expert of each device.
    arriving: Array  # `[n, E / n]`: how many rows of each device come to each expert here.
    rounds: Array  # As many as any device needs.

    def __call__(self, function: Run, rows: Array) -> Array:
        """Returns `[M, D]`: what `function`, on the devices of their experts, makes of the rows here.

        The first round is like any other code. Those after it, which balanced experts do not need, are computed again
        in the backward pass, so that they take no memory however many they are.

        Args:
            rows: `[M, D]`, sorted by expert.
        """
        first = self._round(function, rows, jnp.zeros_like(self.rounds))
        most = -(-rows.shape[0] // self.room)
        if most == 1:
            return first

        def body(total: Array, number: Array) -> tuple[Array, None]:
            needed = number < self.rounds
            return jax.lax.cond(needed, lambda: total + self._round(function, rows, number), lambda: total), None

        def others(total: Array) -> Array:
            numbers = jnp.arange(1, most, dtype=self.rounds.dtype)
            with rarely():
                return jax.lax.scan(jax.checkpoint(body, prevent_cse=False), total, numbers)[0]

        return jax.checkpoint(lambda total: jax.lax.cond(self.rounds > 1, others, lambda total: total, total))(first)

    def sent_rows(self) -> Array:
        """Returns how many rows leave this device for an expert, and come back."""
        return jnp.sum(self.leaving) - jnp.sum(self.leaving[jax.lax.axis_index(self.axes)])

    def padded_rows(self) -> Array:
        """Returns how many places for rows leave this device in all rounds, empty ones included, and come back."""
        return self.rounds * ((self.leaving.shape[0] - 1) * self.room)

    def _round(self, function: Run, rows: Array, number: Array) -> Array:
        """Returns what is made of the rows of one round, and zeros for the others."""
        source, target = self._parcels(rows.shape[0], number)
        arrived = self._swap(permute_rows(rows, source, target))
        begin = number * self.room
        ends = jnp.clip(jnp.cumsum(self.arriving, axis=1), begin, begin + self.room) - begin
        sizes = jnp.diff(ends, axis=1, prepend=0)
        owner = row_groups(sizes, self.room).reshape(-1)
        order = jnp.argsort(owner, stable=True)
        place = jnp.argsort(order)
        made = function(permute_rows(arrived, order, place), jnp.sum(sizes, axis=0))
        return permute_rows(self._swap(permute_rows(made, place, order)), target, source)

    def _parcels(self, num_rows: int, number: Array) -> tuple[Array, Array]:
        """Returns the row in each place of the parcels `[n c]` of a round, and the place `[M]` of each row.

        A number that is too large for either stands for an empty place, and for a row that is not in this round.
        """
        counts = jnp.sum(self.leaving, axis=1)
        starts = jnp.cumsum(counts) - counts
        rank = number * self.room + jnp.arange(self.room, dtype=counts.dtype)
        source = jnp.where(rank < counts[:, None], starts[:, None] + rank, num_rows).reshape(-1)
        to = row_groups(counts, num_rows)
        rank = jnp.arange(num_rows, dtype=counts.dtype) - starts[to] - number * self.room
        target = jnp.where((rank >= 0) & (rank < self.room), to * self.room + rank, source.shape[0])
        return source, target

    def _swap(self, rows: Array) -> Array:
        """Sends the i-th part of the rows to the i-th device; returns what all sent here, in their order."""
        return jax.lax.all_to_all(rows, self.axes, split_axis=0, concat_axis=0, tiled=True)


def exchange(sizes: Array, num_rows: int, axes: tuple[str, ...], *, factor: float) -> Exchange:
    """Agrees with the other devices on an exchange.

    Args:
        sizes: `[E]`, how many of the rows here each expert gets.
        axes: mesh axes of the devices that hold experts, n in all, a divisor of E.
        factor: room between two devices in one round, divided by what it would take if all experts got the same.
    """
    count = jax.lax.axis_size(axes)
    room = min(max(1, math.ceil(factor * num_rows / count)), num_rows)
    leaving = sizes.reshape(count, -1)
    arriving = jax.lax.all_to_all(leaving, axes, split_axis=0, concat_axis=0, tiled=True)
    needed = -(-jnp.max(jnp.sum(leaving, axis=1)) // room)
    # All devices must take the same branch, not just those that exchange: others may wait for them along other axes.
    rounds = largest_of_stages(jax.lax.pmax(needed, jax.sharding.get_abstract_mesh().manual_axes))
    return Exchange(axes, room, leaving, arriving, rounds)
