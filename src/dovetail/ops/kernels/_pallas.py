# SPDX-License-Identifier: Apache-2.0
"""What kernels in Pallas must know, and tell JAX about themselves."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .._kernel_choice import Support
from .._platform import runs_on


def runs_whole_on(platform: str, *, interpret: bool) -> Support:
    """Refuses on other platforms, unless interpreted, and where the compiler would have to split the kernel."""
    if not interpret and not (here := runs_on(platform)):
        return here
    mesh = jax.sharding.get_abstract_mesh()
    left = [axis for axis in mesh.auto_axes if mesh.shape[axis] > 1]
    return Support(f"the compiler cannot split it along the mesh axis {left[0]}") if left else Support()


def like(x: Array, shape: tuple[int, ...]) -> Any:
    """Returns the type of an array of that shape that, in a shard_map, varies over devices as `x` does."""
    return jax.eval_shape(lambda x: jnp.zeros_like(x, shape=shape), x)


def cost(x: Array, y: Array, products: int) -> Any:
    """Returns the cost of that many products of numbers of two arrays, for `count_flops` and for the compiler."""
    from jax.experimental import pallas as pl

    return pl.CostEstimate(flops=2 * products, transcendentals=0, bytes_accessed=x.nbytes + y.nbytes)
