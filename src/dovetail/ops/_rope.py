# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: turns pairs of dimensions of queries and keys by an angle that grows with the position.

Reference: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021 (arXiv:2104.09864).
"""

import jax.numpy as jnp
from jax import Array


def rotary_frequencies(dim: int, theta: float) -> Array:
    """Returns `[dim / 2]` angles per position: `theta ** (-2 i / dim)`."""
    return theta ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)


def rotate(x: Array, positions: Array, frequencies: Array) -> Array:
    """Turns `x` `[B, T, H, K]` by `positions` `[B or 1, T]` times `frequencies` `[K / 2]`.

    Dimension i is paired with i + K / 2, as in Llama checkpoints on Hugging Face. Angles are in float32, the result has
    the dtype of `x`.
    """
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
