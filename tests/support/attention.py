# SPDX-License-Identifier: Apache-2.0
"""Small inputs for attention kernels, and what they are held against."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from dovetail.ops import Mask, Tokens

from . import reference
from .numeric import normal

LENGTH = 5
SEGMENTS = np.array([[1, 1, 2, 2, 0], [1, 2, 2, 2, 3]])
PREFIX = np.array([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)
TOKENS = Tokens(jnp.arange(LENGTH)[None], jnp.asarray(SEGMENTS), jnp.asarray(PREFIX))
SCALE = 0.7


def qkv(heads=4, kv_heads=2, length=LENGTH, keys=None, dtype=jnp.float32, value_dim=4) -> list[Any]:
    """Returns queries, keys and values of dimension 4."""
    keys = length if keys is None else keys
    shapes = [(2, length, heads, 4), (2, keys, kv_heads, 4), (2, keys, kv_heads, value_dim)]
    return [normal(i, shape, dtype, size=2.0) for i, shape in enumerate(shapes)]


def kernel_of(cfg, mask: Mask, q_tokens=TOKENS, k_tokens=TOKENS, aligned=True, scale=SCALE, **scores) -> Callable:
    """Returns a kernel as a function of queries, keys and values."""
    kernel = cfg.build()

    def run(q, k, v):
        return kernel(q, k, v, mask=mask, q_tokens=q_tokens, k_tokens=k_tokens, scale=scale, aligned=aligned, **scores)

    return run


def allowed_of(mask: Mask) -> np.ndarray:
    """Returns who sees whom among `TOKENS`, `[B, T, T]`."""
    rows = [list(zip(range(LENGTH), SEGMENTS[b].tolist(), PREFIX[b].tolist(), strict=True)) for b in range(2)]
    return np.array([reference.seen(mask, row, row) for row in rows])


def definition_of(mask: Mask) -> Callable:
    """Returns the definition of attention among `TOKENS`."""
    return lambda q, k, v: reference.attend(q, k, v, allowed_of(mask), SCALE)
