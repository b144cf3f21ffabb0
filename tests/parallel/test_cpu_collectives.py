# SPDX-License-Identifier: Apache-2.0
"""Collectives on CPUs: none is taken for another, and sums of bfloat16 compile."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from dovetail.parallel import parse_mesh

_NEXT = [(i, (i + 1) % 8) for i in range(8)]


def _on_shards(function, mesh="data=8", dtype=jnp.float32, **options):
    run = jax.shard_map(function, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"), **options)
    with jax.set_mesh(parse_mesh(mesh).on()):
        return jax.jit(run).lower(jax.ShapeDtypeStruct((64, 64), dtype)).compile()


def test_each_collective_has_a_channel_of_its_own():
    def every_kind(x):
        y = jnp.sin(x)
        sums = lax.psum(x, "data") * lax.psum(y, "data") + lax.pmax(x, "data") * lax.pmin(y, "data")
        moved = lax.ppermute(x, "data", _NEXT) * lax.ppermute(y, "data", _NEXT)
        parts = lax.psum_scatter(x, "data", tiled=True) * lax.psum_scatter(y, "data", tiled=True)
        swapped = lax.all_to_all(x, "data", 0, 0, tiled=True) * lax.all_to_all(y, "data", 1, 1, tiled=True)
        gathered = lax.all_gather(x, "data") * lax.all_gather(y, "data", tiled=True).reshape(8, 8, 64)
        return sums + moved + parts + swapped + gathered.sum(0)

    program = _on_shards(every_kind, check_vma=False).as_text()
    assert program is not None
    channels = re.findall(r" channel_id=(\d+)", program)
    assert len(channels) == len(set(channels)) == 11  # XLA makes one of the two sums.


def test_bfloat16_is_summed_where_only_some_axes_are_manual():
    """As JAX has it, the compiler aborts the process. The sum is in float32: 256 + 1 + ... is not 256."""

    def total(x):
        return lax.psum(jnp.where(lax.axis_index("data") == 0, 256, x), "data") + lax.pmax(x, "data")

    run = _on_shards(total, "data=4,tensor=2", jnp.bfloat16, axis_names={"data"}, check_vma=False)
    assert np.all(np.asarray(run(jnp.ones((64, 64), jnp.bfloat16)), np.float32) == 260 + 1 - 1)
