# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products: rows sorted by group, and a matrix for each group.

`ReferenceGroupedMatmul` is the definition. `RaggedDot` leaves it to the compiler, which multiplies all rows by the
matrices of all groups, on CPU and GPU always, on TPU in the gradient of the matrices. `BlockedGroupedMatmul` does the
work of each group alone, on any backend, one block after the other: for CPU. Kernels for TPU and GPU are in `kernels`.

Shape letters: M rows, G groups, K inputs, N outputs.
"""

import abc
import functools
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import Component, ConfigError

from ._kernel_choice import Support, choose
from ._work import Work, is_counted, stated


class GroupedMatmul(Component, abc.ABC):
    """The interface between layers with a matrix for each group and the ways to multiply by them."""

    class Config(Component.Config):
        keeps_defaults: ClassVar[bool] = True

    def __call__(self, x: Array, weight: Array, sizes: Array) -> Array:
        """Returns `[M, N]`: each row times the matrix of its group. Rows after the last group give zeros.

        Args:
            x: `[M, K]`, the rows of the first group first.
            weight: `[G, K, N]`, of the dtype of `x`, which is that of the result; sums are in float32.
            sizes: `[G]`, integers: how many rows each group has, M in all at most.
        """
        if is_counted():
            (rows, ins), outs = x.shape, weight.shape[2]
            flops = 2 * rows * ins * outs
            return stated(Work(flops, flops), jax.ShapeDtypeStruct((rows, outs), x.dtype), x, weight)
        if not (support := self.supports(x, weight, sizes)):
            raise ConfigError(
                f"{self._path or type(self).__name__}: {support.reason}.\n"
                f"  Choose another kernel, or several: PreferredGroupedMatmul takes the first that can."
            )
        return self.multiply(x, weight, sizes)

    def supports(self, x: Array, weight: Array, sizes: Array) -> Support:
        """Says whether it computes this, where the program will run; by default, it computes everything."""
        return Support()

    @abc.abstractmethod
    def multiply(self, x: Array, weight: Array, sizes: Array) -> Array:
        """Computes what a call returns, of what it supports."""


class ReferenceGroupedMatmul(GroupedMatmul):
    """A copy of the matrix for each row: the definition, for few rows and for tests."""

    def multiply(self, x: Array, weight: Array, sizes: Array) -> Array:
        group = row_groups(sizes, x.shape[0])
        chosen = weight.at[group].get(mode="fill", fill_value=0)
        return jnp.einsum("mk,mkn->mn", x, chosen, preferred_element_type=jnp.float32).astype(x.dtype)


class RaggedDot(GroupedMatmul):
    """`jax.lax.ragged_dot`: what the compiler makes of it."""

    def multiply(self, x: Array, weight: Array, sizes: Array) -> Array:
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

    def multiply(self, x: Array, weight: Array, sizes: Array) -> Array:
        return _blocked(max(1, min(self.cfg.block, x.shape[0])), x, weight, sizes)

    def by_blocks(self, x: Array, sizes: Array, product: Callable[[Array, Array], Array], outs: int) -> Array:
        """Returns `[M, outs]`: what `product` makes of a block of rows and its group, for matrices of any kind."""
        return _for_rows(max(1, min(self.cfg.block, x.shape[0])), x, product, outs, sizes)


class PreferredGroupedMatmul(GroupedMatmul):
    """The first of several kernels that computes what it is asked for; see `kernel_choices`."""

    class Config(GroupedMatmul.Config):
        kernels: tuple[GroupedMatmul.Config, ...] = (BlockedGroupedMatmul.Config(),)  # The best ones first.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._kernels: list[GroupedMatmul] = [
            kernel.build(path=f"{self._path}.kernels[{i}]".removeprefix(".")) for i, kernel in enumerate(cfg.kernels)
        ]

    def multiply(self, x: Array, weight: Array, sizes: Array) -> Array:
        def supports(kernel: GroupedMatmul) -> Support:
            return kernel.supports(x, weight, sizes)

        return choose(self._path or "PreferredGroupedMatmul", self._kernels, supports).multiply(x, weight, sizes)


def row_groups(sizes: Array, num_rows: int) -> Array:
    """Returns the group of each row, `[*B, num_rows]` for `[*B, G]`; after the last group, the number of groups.

    >>> row_groups(jnp.array([2, 0, 1]), 4)
    Array([0, 0, 2, 3], dtype=int32)
    """
    return passed(jnp.cumsum(sizes, axis=-1), jnp.arange(num_rows, dtype=sizes.dtype))


def passed(ends: Array, place: Array) -> Array:
    """Returns how many of the ends are not after each place: what `jnp.searchsorted` fails to do in a shard_map."""
    return jnp.sum(ends[..., None, :] <= place[:, None], axis=-1, dtype=ends.dtype)


class RowBlocks(NamedTuple):
    """Blocks of rows of one group each, in order. There are as many as there can be; some may be empty."""

    group: Array
    start: Array  # The first row.
    end: Array  # Of the rows of the group. The last block of a group may reach beyond; an empty one starts there.


def row_blocks(sizes: Array, rows: int, block: int) -> RowBlocks:
    """Returns blocks of so many rows that cover all groups."""
    ends, counts = jnp.cumsum(sizes), -(-sizes // block)
    done = jnp.cumsum(counts)
    step = jnp.arange((rows + min(rows, sizes.shape[0]) * (block - 1)) // block, dtype=sizes.dtype)
    group = jnp.minimum(passed(done, step), sizes.shape[0] - 1)
    start = (ends - sizes)[group] + (step - (done - counts)[group]) * block
    return RowBlocks(group, start, ends[group])


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
    side = 2 if transpose else 1

    def product(part: Array, group: Array) -> Array:
        return jax.lax.dot_general(
            part, weight[group], (((1,), (side - 1,)), ((), ())), preferred_element_type=jnp.float32
        )

    return _for_rows(block, x, product, weight.shape[3 - side], sizes)


def _for_rows(block: int, x: Array, product: Callable[[Array, Array], Array], outs: int, sizes: Array) -> Array:
    """Returns `[M, outs]`: what `product` makes of each block of rows and its group."""
    rows, padded = x.shape[0], _padded(x, block)

    def one(y: Array, each: RowBlocks) -> Array:
        # What reaches into the next group is overwritten by the blocks of that group.
        part = jax.lax.dynamic_slice_in_dim(padded, each.start, block)
        made = product(part, each.group).astype(y.dtype)
        return jax.lax.dynamic_update_slice_in_dim(y, made, each.start, 0)

    # Zeros that are like x also vary over devices if x does.
    y = jnp.zeros_like(x, shape=(rows + block, outs))
    y = _for_blocks(one, y, row_blocks(sizes, rows, block))
    grouped = jnp.arange(rows, dtype=sizes.dtype) < jnp.sum(sizes)
    return jnp.where(grouped[:, None], y[:rows], 0)


def _weight_gradient(block: int, x: Array, dy: Array, sizes: Array) -> Array:
    """Returns `[G, K, N]`: for each group the sum of outer products of its rows, in float32."""
    padded, padded_dy = _padded(x, block), _padded(dy, block)

    def one(total: Array, each: RowBlocks) -> Array:
        own = each.start + jnp.arange(block, dtype=sizes.dtype) < each.end
        part = jnp.where(own[:, None], jax.lax.dynamic_slice_in_dim(padded, each.start, block), 0)
        product = jax.lax.dot_general(
            part,
            jax.lax.dynamic_slice_in_dim(padded_dy, each.start, block),
            (((0,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        return total.at[each.group].add(product)

    zeros = jnp.zeros_like(x, jnp.float32, shape=(sizes.shape[0], x.shape[1], dy.shape[1]))
    return _for_blocks(one, zeros, row_blocks(sizes, x.shape[0], block))


def _for_blocks(one, carry: Array, blocks: RowBlocks) -> Array:
    """Runs `carry = one(carry, block)` for each block that is not empty, in order."""

    def body(carry: Array, block: RowBlocks) -> tuple[Array, None]:
        return jax.lax.cond(block.start < block.end, one, lambda carry, _: carry, carry, block), None

    return jax.lax.scan(body, carry, blocks)[0]


def _padded(x: Array, block: int) -> Array:
    return jnp.pad(x, ((0, block), (0, 0)))
