# SPDX-License-Identifier: Apache-2.0
"""Activations that `jax.nn` does not have."""

import jax
import jax.numpy as jnp
from jax import Array


def erf_gelu(x: Array) -> Array:
    """Returns `x` times the probability that a normal number is below it, by the error function; no approximation.

    Reference: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016 (arXiv:1606.08415).
    """
    return jax.nn.gelu(x, approximate=False)


def squared_relu(x: Array) -> Array:
    """Returns `max(x, 0) ** 2` (So et al., Primer, 2021, arXiv:2109.08668)."""
    return jnp.square(jax.nn.relu(x))
