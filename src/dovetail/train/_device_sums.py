# SPDX-License-Identifier: Apache-2.0
"""Sums over what each device holds of a tree of arrays, so that what should be the same can be compared bit for bit.

Letters: N devices, L leaves.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.checkpoint import shard_sums


class DeviceSums:
    """For trees with leaves on these shardings; None where there is one device."""

    def __init__(self, mesh: jax.sharding.Mesh | None, shardings: Sequence[NamedSharding] | None) -> None:
        self._mesh, self.shardings = mesh, shardings

    def of(self, tree: Any, when: Array | bool = True) -> Array:
        """Returns `[N, L, 2]` numbers, zeros unless `when`. For compiled functions."""

        def own(when: Any, *leaves: Array) -> Array:
            zeros = jnp.zeros((1, len(leaves), 2), jnp.uint32)
            return jax.lax.cond(when, lambda: jnp.stack(list(map(shard_sums, leaves)))[None], lambda: zeros)

        return self._on_each(own, PartitionSpec(self._mesh.axis_names) if self._mesh else None)(when, *_leaves(tree))

    def differ(self, sums: Array) -> Array:
        """Returns for each leaf how many devices hold it otherwise than another does that should hold the same: `[L]`.

        All devices, those of other processes included, get it. For compiled functions.
        """
        if self._mesh is None or self.shardings is None:
            return jnp.zeros(sums.shape[1], jnp.int32)
        replicas = [_replica_axes(self._mesh, sharding) for sharding in self.shardings]

        def compare(sums: Array) -> Array:
            wrong = jnp.zeros(sums.shape[1], bool)
            for axes in sorted(set(replicas) - {()}):
                least, most = jax.lax.pmin(sums[0], axes), jax.lax.pmax(sums[0], axes)
                these = np.array([each == axes for each in replicas])
                wrong |= jnp.any(least != most, axis=-1) & these
            return jax.lax.psum(wrong.astype(jnp.int32), self._mesh.axis_names if self._mesh else ())

        inside = PartitionSpec(self._mesh.axis_names)
        mapped = jax.shard_map(compare, mesh=self._mesh, in_specs=inside, out_specs=PartitionSpec(), check_vma=False)
        return mapped(sums)

    def _on_each(self, function: Any, out: Any) -> Any:
        if self._mesh is None or self.shardings is None:
            return function
        inside = (PartitionSpec(), *(sharding.spec for sharding in self.shardings))
        return jax.shard_map(function, mesh=self._mesh, in_specs=inside, out_specs=out, check_vma=False)


def _leaves(tree: Any) -> list[Array]:
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def _replica_axes(mesh: jax.sharding.Mesh, sharding: NamedSharding) -> tuple[str, ...]:
    """Returns the axes along which devices hold the same."""
    split = {axis for part in sharding.spec for axis in ((part,) if isinstance(part, str) else part or ())}
    return tuple(axis for axis in mesh.axis_names if axis not in split and mesh.shape[axis] > 1)


def bytes_on_a_device(tree: Any) -> int:
    """Returns the memory that a tree of arrays takes on each device."""
    leaves = jax.tree.leaves(tree)
    shapes = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype.itemsize) for leaf in leaves]
    return sum(math.prod(shape) * size for shape, size in shapes)
