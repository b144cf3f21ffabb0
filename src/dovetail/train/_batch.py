# SPDX-License-Identifier: Apache-2.0
"""Batches before there are any: shapes and places, from what an input declares."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.data import BatchSpec, Field
from dovetail.parallel import BatchShape, MeshLayout


def abstract_batch(spec: BatchSpec, shardings: Mapping[str, Any] | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes, dtypes and places of a batch."""
    places = shardings or {}
    return {
        name: jax.ShapeDtypeStruct(field.shape, field.dtype, sharding=places.get(name))
        for name, field in spec.fields.items()
    }


def batch_shape(specs: Sequence[BatchSpec], parts: int = 1) -> BatchShape:
    """Returns what a mesh must be able to divide: of several specs, the largest sizes that divide those of each."""
    lengths: dict[str, int] = {}
    for spec in specs:
        for axis, size in spec.lengths().items():
            lengths[axis] = math.gcd(lengths.get(axis, 0), size)
    return BatchShape(math.gcd(*(spec.rows for spec in specs)), lengths, parts)


def largest(specs: Sequence[BatchSpec]) -> BatchSpec:
    """Returns the spec of the batches that have the most units: what memory must have room for."""
    return max(specs, key=lambda spec: spec.num_units)


def placement(field: Field, layout: MeshLayout, mesh: jax.sharding.Mesh) -> NamedSharding:
    """Returns where a field of a batch lies."""
    axes = (layout.activation_axes(axis) or None if axis else None for axis in field.axes)
    return NamedSharding(mesh, PartitionSpec(*axes))
