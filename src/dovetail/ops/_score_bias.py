# SPDX-License-Identifier: Apache-2.0
"""What positions add to attention scores, as a function of the distance from query to key.

Shape letters: B batch, T queries, S keys, H query heads.
"""

import abc
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array


class ScoreBias(abc.ABC):
    """The interface: a function of the distance whose arrays, as a tree, have gradients.

    The first dimension of each array is that of the heads, so that a device can have those of its own heads alone.
    """

    @abc.abstractmethod
    def __call__(self, distance: Array) -> Array:
        """Maps distances `[B or 1, T, S]`, positive for keys before the query, to float32 `[B or 1, H, T, S]`."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearBias(ScoreBias):
    """Takes `slope * |distance|` off the scores, with a slope for each head."""

    slopes: Array  # [H]

    def __call__(self, distance: Array) -> Array:
        return -self.slopes.astype(jnp.float32)[:, None, None] * jnp.abs(distance)[:, None].astype(jnp.float32)


def alibi_slopes(num_heads: int) -> list[float]:
    """Returns a slope for each head: powers of `2 ** (-8 / n)` for the largest power of two `n` up to `num_heads`.

    Further heads take every other power of the sequence for `2 n`.

    Reference: Press, Smith and Lewis, Train Short, Test Long, 2021 (arXiv:2108.12409), and its code for other numbers.
    """
    n = 2 ** (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / n) for i in range(n)]
    return slopes + [2 ** (-4 * (2 * i + 1) / n) for i in range(num_heads - n)]
