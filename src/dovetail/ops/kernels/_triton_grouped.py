# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products on GPU: a Pallas kernel, compiled by Triton.

`jax.lax.ragged_dot` becomes one product with a copy of all rows for each group there.

Shape letters: M rows, G groups, K inputs, N outputs.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError

from .._grouped import GroupedMatmul, row_blocks
from .._kernel_choice import Support
from ._pallas import cost, like, runs_whole_on


class TritonGroupedMatmul(GroupedMatmul):
    """Blocks of rows times the matrices of their groups, on GPUs of NVIDIA."""

    class Config(GroupedMatmul.Config):
        tile: int = 128  # Rows and columns of the block of results that a program computes.
        depth: int = 128  # Bytes of a row, or of a column, that are multiplied in one step.
        warps: int = 8
        stages: int = 3  # Steps whose operands are loaded ahead.
        interpret: bool = False  # Runs on any platform, slowly: for tests.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        for field in ("tile", "depth"):
            size = getattr(cfg, field)
            if size < 64 or size & (size - 1):
                path = self._path or "TritonGroupedMatmul"
                raise ConfigError(f"{path}: {field} is {size}, expected a power of two of at least 64.")

    def supports(self, x: Array, weight: Array, sizes: Array) -> Support:
        if not (here := runs_whole_on("cuda", interpret=self.cfg.interpret)):
            return here
        if x.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
            return Support(f"it multiplies bfloat16, float16 and float32, this is {x.dtype}")
        return Support()

    def multiply(self, x: Array, weight: Array, sizes: Array) -> Array:
        if not x.shape[0]:
            return jnp.zeros_like(x, shape=(0, weight.shape[2]))
        return _grouped(self.cfg, x, weight, sizes.astype(jnp.int32))


_Config = TritonGroupedMatmul.Config


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _grouped(cfg: _Config, x: Array, weight: Array, sizes: Array) -> Array:
    return _product(cfg, x, weight, sizes, transpose=False)


def _forward(cfg: _Config, x: Array, weight: Array, sizes: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return _grouped(cfg, x, weight, sizes), (x, weight, sizes)


def _backward(cfg: _Config, saved: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array, None]:
    x, weight, sizes = saved
    return _product(cfg, dy, weight, sizes, transpose=True), _weight_gradient(cfg, x, dy, sizes), None


_grouped.defvjp(_forward, _backward)


def _product(cfg: _Config, x: Array, weight: Array, sizes: Array, *, transpose: bool) -> Array:
    """Multiplies each row by the matrix of its group, or by its transpose."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (rows, inner), columns, tile = x.shape, weight.shape[1 if transpose else 2], cfg.tile
    depth = cfg.depth // x.dtype.itemsize
    # Rows after the last group are a group of which nothing is summed.
    sizes = jnp.append(sizes, rows - jnp.sum(sizes, dtype=jnp.int32))
    blocks = row_blocks(sizes, rows, tile)
    needed = (blocks.start < blocks.end) & (blocks.group < len(weight))
    steps = jnp.where(needed, pl.cdiv(inner, depth), 0)
    group = jnp.minimum(blocks.group, len(weight) - 1)

    def kernel(group: Any, start: Any, end: Any, steps: Any, x: Any, weight: Any, y: Any) -> None:
        block, first = pl.program_id(1), pl.program_id(0) * tile
        row, column = start[block] + jnp.arange(tile), first + jnp.arange(tile)
        is_row, is_column = row < end[block], column < columns

        def step(i: Array, total: Array) -> Array:
            inside = i * depth + jnp.arange(depth) < inner
            part = pl.ds(i * depth, depth)
            left = triton.load(x.at[pl.ds(start[block], tile), part], mask=is_row[:, None] & inside[None, :], other=0.0)
            if transpose:
                place, mask = (pl.ds(first, tile), part), is_column[:, None] & inside[None, :]
            else:
                place, mask = (part, pl.ds(first, tile)), inside[:, None] & is_column[None, :]
            right = triton.load(weight.at[group[block], *place], mask=mask, other=0.0)
            return total + triton.dot(left, right, trans_b=transpose)

        total = jax.lax.fori_loop(0, steps[block], step, jnp.zeros((tile, tile), jnp.float32))
        triton.store(
            y.at[pl.ds(start[block], tile), pl.ds(first, tile)],
            total.astype(y.dtype),
            mask=is_row[:, None] & is_column[None, :],
        )

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(columns, tile), len(blocks.group)),
        out_shape=like(x, (rows, columns)),
        compiler_params=triton.CompilerParams(num_warps=cfg.warps, num_stages=cfg.stages),
        cost_estimate=cost(x, weight, rows * inner * columns),
        interpret=cfg.interpret,
    )(group, blocks.start, blocks.end, steps, x, weight)


def _weight_gradient(cfg: _Config, x: Array, dy: Array, sizes: Array) -> Array:
    """Returns `[G, K, N]`: for each group the sum of outer products of its rows."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    inputs, outputs, tile, depth = x.shape[1], dy.shape[1], cfg.tile, cfg.depth // x.dtype.itemsize
    ends = jnp.cumsum(sizes)

    def kernel(start: Any, end: Any, x: Any, dy: Any, dw: Any) -> None:
        group, from_row, from_column = pl.program_id(2), pl.program_id(1) * tile, pl.program_id(0) * tile
        is_row = from_row + jnp.arange(tile) < inputs
        is_column = from_column + jnp.arange(tile) < outputs

        def step(i: Array, total: Array) -> Array:
            first = start[group] + i * depth
            own = (first + jnp.arange(depth) < end[group])[:, None]
            left = triton.load(x.at[pl.ds(first, depth), pl.ds(from_row, tile)], mask=own & is_row[None, :], other=0.0)
            right = triton.load(
                dy.at[pl.ds(first, depth), pl.ds(from_column, tile)], mask=own & is_column[None, :], other=0.0
            )
            return total + triton.dot(left, right, trans_a=True)

        steps = pl.cdiv(end[group] - start[group], depth)
        total = jax.lax.fori_loop(0, steps, step, jnp.zeros((tile, tile), jnp.float32))
        triton.store(
            dw.at[group, pl.ds(from_row, tile), pl.ds(from_column, tile)],
            total.astype(dw.dtype),
            mask=is_row[:, None] & is_column[None, :],
        )

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(outputs, tile), pl.cdiv(inputs, tile), len(sizes)),
        out_shape=like(x, (len(sizes), inputs, outputs)),
        compiler_params=triton.CompilerParams(num_warps=cfg.warps, num_stages=cfg.stages),
        cost_estimate=cost(x, dy, x.shape[0] * inputs * outputs),
        interpret=cfg.interpret,
    )(ends - sizes, ends, x, dy)
