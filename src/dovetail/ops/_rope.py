# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: turns pairs of dimensions of queries and keys by an angle that grows with the position.

Lower frequencies make a sequence look shorter, for models that have been trained on shorter ones. There are several
ways to choose which of them to lower, and by how much.

Reference: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021 (arXiv:2104.09864).
"""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from .kernels._elementwise import is_native, native_rotate


def rotary_frequencies(dim: int, theta: float) -> np.ndarray:
    """Returns `[dim / 2]` angles per position: `theta ** (-2 i / dim)`."""
    return theta ** (-np.arange(0, dim, 2) / dim)


def ntk_frequencies(dim: int, theta: float, growth: Array) -> Array:
    """Returns `[*B, dim / 2]` frequencies: the lowest divided by `growth`, `[*B, 1]`, the highest as they are.

    The name is after the neural tangent kernel. In between, `theta` is multiplied by `growth ** (dim / (dim - 2))`.
    """
    slower = growth ** jnp.asarray(-np.arange(0, dim, 2) / (dim - 2), jnp.float32)
    return slower * jnp.asarray(rotary_frequencies(dim, theta), jnp.float32)


def llama3_frequencies(
    dim: int, theta: float, *, factor: float, low: float, high: float, original_length: int
) -> np.ndarray:
    """Returns frequencies divided by `factor` if they turn less than `low` times in `original_length` positions.

    Those that turn more than `high` times stay as they are; in between, the two are mixed.

    Reference: Grattafiori et al., The Llama 3 Herd of Models, 2024 (arXiv:2407.21783), and its code.
    """
    frequencies = rotary_frequencies(dim, theta)
    turns = frequencies * original_length / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / factor)


def yarn_frequencies(
    dim: int, theta: float, *, factor: float, slow: float, fast: float, original_length: int, truncate: bool
) -> np.ndarray:
    """Returns frequencies divided by `factor` if they turn less than `slow` times in `original_length` positions.

    Those that turn more than `fast` times stay as they are; in between, the two are mixed, by a ramp over the number of
    the frequency. With `truncate` the ramp starts and ends at whole numbers.

    Reference: Peng et al., YaRN: Efficient Context Window Extension of Large Language Models, 2023 (arXiv:2309.00071).
    """
    frequencies = rotary_frequencies(dim, theta)

    def number(turns: float) -> float:
        """Which frequency turns so many times."""
        return dim * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    start, end = number(fast), number(slow)
    if truncate:
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, dim - 1)
    end = end + 0.001 if start == end else end
    lowered = np.clip((np.arange(dim // 2) - start) / (end - start), 0, 1)
    return frequencies * (1 - lowered + lowered / factor)


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """Returns what YaRN multiplies queries and keys by: more, the longer sequences have become."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_frequencies(dim: int, theta: float, factors: Sequence[float]) -> np.ndarray:
    """Returns frequencies, each divided by a factor of its own, `[dim / 2]`, which was searched for.

    Reference: Ding et al., LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, 2024 (arXiv:2402.13753).
    """
    return rotary_frequencies(dim, theta) / np.asarray(factors)


def longrope_magnitude(factor: float, original_length: int) -> float:
    """Returns what LongRoPE multiplies queries and keys by: more, the longer sequences have become."""
    return math.sqrt(1 + math.log(factor) / math.log(original_length)) if factor > 1 else 1.0


def rotate(
    x: Array, positions: Array, frequencies: ArrayLike, *, magnitude: float = 1.0, interleaved: bool = False
) -> Array:
    """Turns `x` `[B, T, H, K]` by `positions` `[B or 1, T]` times `frequencies` `[K / 2]`, or `[B, 1, 1, K / 2]`.

    Dimension i is paired with i + K / 2, as in Llama checkpoints on Hugging Face; if `interleaved`, 2 i with 2 i + 1,
    as in the paper. Angles are in float32, the result has the dtype of `x`.
    """
    angles = positions[:, :, None, None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if magnitude != 1.0:
        cos, sin = cos * magnitude, sin * magnitude
    if is_native(x):
        return native_rotate(x, cos, sin, interleaved)
    x32 = x.astype(jnp.float32)
    a, b = (x32[..., ::2], x32[..., 1::2]) if interleaved else jnp.split(x32, 2, axis=-1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    out = jnp.stack(turned, axis=-1).reshape(x.shape) if interleaved else jnp.concatenate(turned, axis=-1)
    return out.astype(x.dtype)
