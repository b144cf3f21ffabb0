# SPDX-License-Identifier: Apache-2.0
"""Activations that `jax.nn` does not have."""

import jax
import jax.numpy as jnp
from jax import Array


def squared_relu(x: Array) -> Array:
    """Returns `max(x, 0) ** 2` (So et al., Primer, 2021, arXiv:2109.08668)."""
    return jnp.square(jax.nn.relu(x))
