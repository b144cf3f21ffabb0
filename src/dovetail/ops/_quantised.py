# SPDX-License-Identifier: Apache-2.0
"""Matrices kept in few bits, and products with them: for weights that do not change any more, and for caches.

With 8 bits, each column has a scale, and numbers are from -127 to 127. With 4 bits, each group of a column has a scale
and an offset, and numbers are from 0 to 15: the first half of a group is in the low bits of its bytes, the second half
in the high ones, so that neither has to be moved to be multiplied.

Shape letters: M rows, K summed over, N columns, C groups of a column, S = K / C numbers of a group.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from ._grouped import BlockedGroupedMatmul, GroupedMatmul
from ._platform import target
from ._work import is_counted

_BLOCK = 2**18  # Numbers that are in memory at once on CPUs: few enough for a cache, so that they are read once.
_WIDER = 1 + 2**-8  # Rounding to bfloat16 moves a number by 2 ** -9 of itself at most.


class Quantised(NamedTuple):
    """Matrices `[..., K, N]` in few bits."""

    values: Array  # int8 `[..., K, N]`; or, with 4 bits, uint8 `[..., K / 2, N]`.
    scale: Array  # float32 `[..., N]`; or, with 4 bits, bfloat16 `[..., C, N]`.
    offset: Array | None = None  # With 4 bits: bfloat16 `[..., C, N]`.

    @classmethod
    def columns(cls, weight: Array) -> "Quantised":
        """Rounds each column of `[..., K, N]` to 8 bits: off by half a scale at most, which is max / 254."""
        return cls(*_rounded(weight.astype(jnp.float32), -2, jnp.float32))

    @classmethod
    def groups(cls, weight: Array, size: int) -> "Quantised":
        """Rounds groups of `size` numbers in each column of `[..., K, N]` to 4 bits: off by half a scale at most.

        The scale is the range of the group by 15, and up to 2 % more: scale and offset are bfloat16, rounded so that
        the whole range is within reach.

        Args:
            size: even, and divides K.
        """
        *outer, ins, outs = weight.shape
        groups = weight.astype(jnp.float32).reshape(*outer, ins // size, size, outs)
        least, most = jnp.min(groups, axis=-2), jnp.max(groups, axis=-2)
        offset = (least - jnp.abs(least) * (_WIDER - 1)).astype(jnp.bfloat16)
        scale = ((most - offset.astype(jnp.float32)) / 15 * _WIDER).astype(jnp.bfloat16)
        step, start = (each.astype(jnp.float32)[..., None, :] for each in (scale, offset))
        rounded = jnp.clip(jnp.round((groups - start) / jnp.where(step == 0, 1.0, step)), 0, 15).astype(jnp.uint8)
        low, high = jnp.split(rounded, 2, axis=-2)
        return cls((low | high << 4).reshape(*outer, ins // 2, outs), scale, offset)

    def array(self, dtype: DTypeLike) -> Array:
        """Returns the matrices `[..., K, N]`, rounded to a dtype."""
        if self.offset is None:
            return (self.values.astype(jnp.float32) * self.scale[..., None, :]).astype(dtype)
        halves = jnp.stack(_halves(self, jnp.float32), axis=-3)
        return halves.reshape(*self.values.shape[:-2], -1, self.values.shape[-1]).astype(dtype)

    def matmul(self, x: Array) -> Array:
        """Multiplies `[M, K]` by a matrix `[K, N]`; the result has the dtype of `x`, sums are in float32.

        On a CPU, a part of the matrix after the other is made a floating-point one, each small enough for the cache:
        made as a whole, it would be written to memory and read again, which takes several times as long. Elsewhere,
        compilers do it within the product.
        """
        rows, ins = x.shape
        width = ins if target() != "cpu" or is_counted() else _width(self, ins)

        def add(block: Array, total: Array) -> Array:
            def part(array: Array, axis: int) -> Array:
                size = array.shape[axis] * width // ins
                return jax.lax.dynamic_slice_in_dim(array, block * size, size, axis)

            here = self._replace(values=part(self.values, 0))
            if self.offset is not None:
                here = here._replace(scale=part(self.scale, 0), offset=part(self.offset, 0))
            return total + _product(part(x, 1), here)

        if width == ins:
            total = _product(x, self)
        else:
            # Zeros that are like x also vary over devices if x does.
            zeros = jnp.zeros_like(x, jnp.float32, shape=(rows, self.values.shape[-1]))
            total = jax.lax.fori_loop(0, ins // width, add, zeros)
        if self.offset is None:
            total = total * self.scale
        return total.astype(x.dtype)

    def grouped_matmul(self, x: Array, sizes: Array, kernel: GroupedMatmul) -> Array:
        """Multiplies rows `[M, K]`, sorted by group, by the matrix of their group, of `[G, K, N]`; see `GroupedMatmul`.

        Blocks of rows take the matrices of their groups as they are. Other kernels are given a floating-point copy of
        all matrices.
        """
        if not isinstance(kernel, BlockedGroupedMatmul) or is_counted():
            return kernel(x, self.array(x.dtype), sizes)

        def product(part: Array, group: Array) -> Array:
            return jax.tree.map(lambda each: each[group], self).matmul(part)

        return kernel.by_blocks(x, sizes, product, self.values.shape[2])


def quantise_rows(x: Array) -> tuple[Array, Array]:
    """Rounds the last dimension of `[..., K]` to 8 bits, each row with a bfloat16 scale `[...]`; see `rescaled`.

    A row is off by half a scale at most: bfloat16 rounds the largest number to 127.3 steps at most, which is 127.
    """
    values, scale = _rounded(x.astype(jnp.float32), -1, jnp.bfloat16)
    return values, scale


def rescaled(values: Array, scale: Array, dtype: DTypeLike) -> Array:
    """Returns the rows `[..., K]` that `quantise_rows` rounded."""
    return (values.astype(jnp.float32) * scale.astype(jnp.float32)[..., None]).astype(dtype)


def _rounded(x: Array, axis: int, dtype: DTypeLike) -> tuple[Array, Array]:
    """Returns int8 numbers, and scales of a dtype, without the dimension that they are for."""
    scale = (jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0.0) / 127).astype(dtype)
    step = scale.astype(jnp.float32)
    values = jnp.round(x / jnp.where(step == 0, 1.0, step))
    return jnp.clip(values, -127, 127).astype(jnp.int8), jnp.squeeze(scale, axis)


def _product(x: Array, stored: Quantised) -> Array:
    """Returns `[M, N]` in float32, without the scale of columns."""
    if stored.offset is None:
        return jnp.dot(x, stored.values.astype(x.dtype), preferred_element_type=jnp.float32)
    low, high = (half.reshape(-1, half.shape[-1]) for half in _halves(stored, x.dtype))
    halves = x.reshape(x.shape[0], stored.scale.shape[0], 2, -1)
    a, b = (halves[:, :, i].reshape(x.shape[0], -1) for i in (0, 1))
    return jnp.dot(a, low, preferred_element_type=jnp.float32) + jnp.dot(b, high, preferred_element_type=jnp.float32)


def _halves(stored: Quantised, dtype: DTypeLike) -> tuple[Array, Array]:
    """Returns the first and the second half of each group, `[..., C, S / 2, N]`."""
    assert stored.offset is not None
    *outer, groups, outs = stored.scale.shape
    packed = stored.values.reshape(*outer, groups, -1, outs)
    scale, offset = (each.astype(jnp.float32)[..., None, :] for each in (stored.scale, stored.offset))
    low, high = ((bits.astype(jnp.float32) * scale + offset).astype(dtype) for bits in (packed & 15, packed >> 4))
    return low, high


def _width(stored: Quantised, ins: int) -> int:
    """Returns how many rows of a matrix are made floating-point ones at once: whole groups, and a divisor of all."""
    least = 1 if stored.offset is None else ins // stored.scale.shape[0]
    wanted = _BLOCK // stored.values.shape[-1]
    found = [least * part for part in _divisors(ins // least) if least * part <= wanted]
    # A number of rows that has no fitting divisor: all at once rather than a few at a time.
    return max(found) if found and max(found) >= min(16, wanted) else ins


def _divisors(number: int) -> list[int]:
    small = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return [*small, *(number // part for part in small)]
