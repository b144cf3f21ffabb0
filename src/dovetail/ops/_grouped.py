# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products: rows sorted by group, and a matrix for each group.

`ReferenceGroupedMatmul` is the definition. `RaggedDot` leaves it to the compiler: exact work on TPU, but on CPU, XLA
multiplies all rows by the matrices of all groups. `BlockedGroupedMatmul` does the work of each group alone, on any
backend.

Shape letters: M rows, G groups, K inputs, N outputs.
"""

import abc
import functools

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import Component, ConfigError


class GroupedMatmul(Component, abc.ABC):
    """The interface between layers with a matrix for each group and the ways to multiply by them."""

    @abc.abstractmethod
    def __call__(self, x: Array, weight: Array, sizes: Array) -> Array:
        """Returns `[M, N]`: each row times the matrix of its group. Rows after the last group give zeros.

        Args:
            x: `[M, K]`, the rows of the first group first.
            weight: `[G, K, N]`, of the dtype of `x`, which is that of the result; sums are in float32.
            sizes: `[G]`, integers: how many rows each group has, M in all at most.
        """


class ReferenceGroupedMatmul(GroupedMatmul):
    """A copy of the matrix for each row: the definition, for few rows and for tests."""

    def __call__(self, x: Array, weight: Array, sizes: Array) -> Array:
        group = row_groups(sizes, x.shape[0])
        chosen = weight.at[group].get(mode="fill", fill_value=0)
        return jnp.einsum("mk,mkn->mn", x, chosen, preferred_element_type=jnp.float32).astype(x.dtype)


class RaggedDot(GroupedMatmul):
    """`jax.lax.ragged_dot`, for backends whose compiler does not multiply by all matrices."""

    def __call__(self, x: Array, weight: Array, sizes: Array) -> Array:
        y = jax.lax.ragged_dot(x, weight, sizes.astype(jnp.int32), preferred_element_type=jnp.float32)
        return y.astype(x.dtype)


class BlockedGroupedMatmul(GroupedMatmul):
    """One block of rows after the other, each times the matrix of its group.

    The last block of a group may reach into the next one, so that at most `block - 1` rows for each group are computed
    in vain; `count_flops` counts as many. The gradients cost twice that, as those of any product do.
    """

    class Config(GroupedMatmul.Config):
        block: int = 128  # Rows in a block.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.block < 1:
            raise ConfigError(f"{self._path or 'BlockedGroupedMatmul'}: block is {cfg.block}, expected at least 1.")

    def __call__(self, x: Array, weight: Array, sizes: Array) -> Array:
        return _blocked(max(1, min(self.cfg.block, x.shape[0])), x, weight, sizes)


def row_groups(sizes: Array, num_rows: int) -> Array:
    """Returns the group of each row, `[*B, num_rows]` for `[*B, G]`; after the last group, the number of groups.

    >>> row_groups(jnp.array([2, 0, 1]), 4)
    Array([0, 0, 2, 3], dtype=int32)
    """
    return _passed(jnp.cumsum(sizes, axis=-1), jnp.arange(num_rows, dtype=sizes.dtype))


def _passed(ends: Array, place: Array) -> Array:
    """Returns how many of the ends are not after each place: what `jnp.searchsorted` fails to do in a shard_map."""
    return jnp.sum(ends[..., None, :] <= place[:, None], axis=-1, dtype=ends.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blocked(block: int, x: Array, weight: Array, sizes: Array) -> Array:
    return _products(block, x, weight, sizes, transpose=False)


def _blocked_forward(block: int, x: Array, weight: Array, sizes: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return _blocked(block, x, weight, sizes), (x, weight, sizes)


def _blocked_backward(block: int, saved: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array, None]:
    x, weight, sizes = saved
    dx = _products(block, dy, weight, sizes, transpose=True)
    return dx, _weight_gradient(block, x, dy, sizes).astype(weight.dtype), None


_blocked.defvjp(_blocked_forward, _blocked_backward)


def _products(block: int, x: Array, weight: Array, sizes: Array, *, transpose: bool) -> Array:
    """Multiplies each row by the matrix of its group, or by its transpose."""
    rows, padded = x.shape[0], _padded(x, block)
    side = 2 if transpose else 1

    def one(y: Array, group: Array, start: Array) -> Array:
        # What reaches into the next group is overwritten by the blocks of that group.
        part = jax.lax.dynamic_slice_in_dim(padded, start, block)
        product = jax.lax.dot_general(
            part, weight[group], (((1,), (side - 1,)), ((), ())), preferred_element_type=jnp.float32
        )
        return jax.lax.dynamic_update_slice_in_dim(y, product.astype(y.dtype), start, 0)

    # Zeros that are like x also vary over devices if x does.
    y = _for_blocks(one, jnp.zeros_like(x, shape=(rows + block, weight.shape[3 - side])), block, sizes, rows)
    grouped = jnp.arange(rows, dtype=sizes.dtype) < jnp.sum(sizes)
    return jnp.where(grouped[:, None], y[:rows], 0)


def _weight_gradient(block: int, x: Array, dy: Array, sizes: Array) -> Array:
    """Returns `[G, K, N]`: for each group the sum of outer products of its rows, in float32."""
    rows, ends = x.shape[0], jnp.cumsum(sizes)
    padded, padded_dy = _padded(x, block), _padded(dy, block)

    def one(total: Array, group: Array, start: Array) -> Array:
        own = start + jnp.arange(block, dtype=ends.dtype) < ends[group]
        part = jnp.where(own[:, None], jax.lax.dynamic_slice_in_dim(padded, start, block), 0)
        product = jax.lax.dot_general(
            part,
            jax.lax.dynamic_slice_in_dim(padded_dy, start, block),
            (((0,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        return total.at[group].add(product)

    zeros = jnp.zeros_like(x, jnp.float32, shape=(sizes.shape[0], x.shape[1], dy.shape[1]))
    return _for_blocks(one, zeros, block, sizes, rows)


def _for_blocks(one, carry: Array, block: int, sizes: Array, rows: int) -> Array:
    """Runs `carry = one(carry, group, start)` for each block of each group, in order.

    The number of steps is the largest there can be; those that are not needed do nothing.
    """
    counts = -(-sizes // block)
    ends = jnp.cumsum(counts)
    step = jnp.arange((rows + min(rows, sizes.shape[0]) * (block - 1)) // block, dtype=sizes.dtype)
    group = jnp.minimum(_passed(ends, step), sizes.shape[0] - 1)
    start = (jnp.cumsum(sizes) - sizes)[group] + (step - (ends - counts)[group]) * block

    def body(carry: Array, each: tuple[Array, Array, Array]) -> tuple[Array, None]:
        needed, group, start = each
        return jax.lax.cond(needed, one, lambda carry, *_: carry, carry, group, start), None

    return jax.lax.scan(body, carry, (step < ends[-1], group, start))[0]


def _padded(x: Array, block: int) -> Array:
    return jnp.pad(x, ((0, block), (0, 0)))
