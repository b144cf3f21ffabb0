# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products on TPU: a Pallas kernel that visits each tile of rows once for each group in it.

JAX has such kernels too (`jax.lax.ragged_dot`, `pallas.ops.tpu.megablox`). The first multiplies all rows for each group
in the gradient of the weight; the second does not say how its results vary over devices, which `jax.shard_map` asks.

Shape letters: M rows, G groups, K inputs, N outputs, V visits.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError

from .._grouped import GroupedMatmul, passed
from .._kernel_choice import Support
from ._pallas import cost, like, runs_whole_on

_LANES = 128  # The last dimension of a tile is a multiple of it, or all there is.


class MegabloxGroupedMatmul(GroupedMatmul):
    """Tiles of rows times the matrices of their groups, on TPU. A tile with rows of two groups is computed twice.

    Reference: Gale et al., MegaBlocks: Efficient Sparse Training with Mixture-of-Experts, 2022 (arXiv:2211.15841), for
    the idea; the tiles here are those of a matrix unit of a TPU.
    """

    class Config(GroupedMatmul.Config):
        tile: int = 128  # Rows in a tile. More rows use the matrix unit better; groups should have several tiles.
        memory: int = 24 * 2**20  # Bytes of on-chip memory (VMEM) for the tiles in flight.
        interpret: bool = False  # Runs on any platform, slowly: for tests.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.tile < 16 or cfg.tile % 16:
            path = self._path or "MegabloxGroupedMatmul"
            raise ConfigError(f"{path}: tile is {cfg.tile}, expected a positive multiple of 16.")

    def supports(self, x: Array, weight: Array, sizes: Array) -> Support:
        if not (here := runs_whole_on("tpu", interpret=self.cfg.interpret)):
            return here
        if x.dtype not in (jnp.bfloat16, jnp.float32):
            return Support(f"it multiplies bfloat16 and float32, this is {x.dtype}")
        inputs, outputs = weight.shape[1:]
        for inner, columns in ((inputs, outputs), (outputs, inputs)):
            if _product_tiles(self.cfg, x.dtype, inner, columns) is None:
                size = f"a step of {inner} inputs and {columns} outputs"
                return Support(f"{size} needs more than its memory, {self.cfg.memory} bytes")
        return Support()

    def multiply(self, x: Array, weight: Array, sizes: Array) -> Array:
        if not x.shape[0]:
            return jnp.zeros_like(x, shape=(0, weight.shape[2]))
        return _grouped(self.cfg, x, weight, sizes.astype(jnp.int32))


_Config = MegabloxGroupedMatmul.Config


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _grouped(cfg: _Config, x: Array, weight: Array, sizes: Array) -> Array:
    return _product(cfg, x, weight, sizes, transpose=False)


def _forward(cfg: _Config, x: Array, weight: Array, sizes: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return _grouped(cfg, x, weight, sizes), (x, weight, sizes)


def _backward(cfg: _Config, saved: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array, None]:
    x, weight, sizes = saved
    return _product(cfg, dy, weight, sizes, transpose=True), _weight_gradient(cfg, x, dy, sizes), None


_grouped.defvjp(_forward, _backward)


class _Visits(NamedTuple):
    """What the kernel does, step by step: a tile of rows, for one of the groups that have rows in it."""

    group: Array  # `[V]`.
    tile: Array  # `[V]`.
    start: Array  # `[G]`, the first row of each group.
    end: Array  # `[G]`.

    def own(self, step: Array, shape: tuple[int, int]) -> Array:
        """Returns which rows of a tile are of the group: an array of the shape of the tile."""
        group = self.group[step]
        row = self.tile[step] * shape[0] + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        return (row >= self.start[group]) & (row < self.end[group])


def _visits(sizes: Array, rows: int, tile: int, *, empty: bool) -> tuple[_Visits, Array]:
    """Returns the visits, in order, and how many there are; with `empty`, groups without rows have one too."""
    end = jnp.cumsum(sizes)
    start, tiles = end - sizes, -(-rows // tile)
    counts = jnp.where(sizes > 0, (end - 1) // tile + 1 - start // tile, int(empty))
    done = jnp.cumsum(counts)
    step = jnp.arange(tiles + len(sizes) - 1, dtype=jnp.int32)
    group = jnp.minimum(passed(done, step), len(sizes) - 1)
    place = (start // tile)[group] + step - (done - counts)[group]
    # A grid has at least one step: without rows it is one that keeps nothing.
    return _Visits(group, jnp.clip(place, 0, tiles - 1), start, end), jnp.maximum(done[-1], 1)


def _product(cfg: _Config, x: Array, weight: Array, sizes: Array, *, transpose: bool) -> Array:
    """Multiplies each row by the matrix of its group, or by its transpose."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    (rows, inner), columns = x.shape, weight.shape[1 if transpose else 2]
    tiles = _product_tiles(cfg, x.dtype, inner, columns)
    assert tiles is not None
    (depth, width), height = tiles, cfg.tile
    visits, count = _visits(sizes, rows, height, empty=False)
    steps = inner // depth
    contracted = (((1,), (1 if transpose else 0,)), ((), ()))

    def kernel(*refs: Any) -> None:
        visits, (x, weight, y, total) = _Visits(*refs[:4]), refs[4:]
        visit, step = pl.program_id(1), pl.program_id(2)

        @pl.when(step == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jax.lax.dot_general(x[...], weight[...], contracted, preferred_element_type=jnp.float32)

        @pl.when(step == steps - 1)
        def _() -> None:
            own = visits.own(visit, (height, width))
            y[...] = jnp.where(own, total[...], y[...].astype(jnp.float32)).astype(y.dtype)

    def matrix(column: Array, visit: Array, step: Array, group: Array, *_: Array) -> tuple[Array, ...]:
        return (group[visit], column, step) if transpose else (group[visit], step, column)

    y = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(visits),
            grid=(pl.cdiv(columns, width), count, steps),
            in_specs=[
                pl.BlockSpec((height, depth), lambda column, visit, step, _, tile, *__: (tile[visit], step)),
                pl.BlockSpec((None, width, depth) if transpose else (None, depth, width), matrix),
            ],
            out_specs=pl.BlockSpec((height, width), lambda column, visit, step, _, tile, *__: (tile[visit], column)),
            scratch_shapes=[pltpu.VMEM((height, width), jnp.float32)],
        ),
        out_shape=like(x, (rows, columns)),
        compiler_params=_params(cfg),
        cost_estimate=cost(x, weight, rows * inner * columns),
        interpret=cfg.interpret,
    )(*visits, x, weight)
    # No step has written the rows after the last group.
    return jnp.where((jnp.arange(rows, dtype=jnp.int32) < visits.end[-1])[:, None], y, 0)


def _weight_gradient(cfg: _Config, x: Array, dy: Array, sizes: Array) -> Array:
    """Returns `[G, K, N]`: for each group the sum of outer products of its rows."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    (rows, inputs), outputs, height = x.shape, dy.shape[1], cfg.tile
    depth, width = _gradient_tiles(cfg, x.dtype, inputs, outputs)
    visits, count = _visits(sizes, rows, height, empty=True)

    def kernel(*refs: Any) -> None:
        visits, (x, dy, dw, total) = _Visits(*refs[:4]), refs[4:]
        visit = pl.program_id(2)
        group, last = visits.group[visit], pl.num_programs(2) - 1

        @pl.when((visit == 0) | (visits.group[jnp.maximum(visit - 1, 0)] != group))
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        def own(part: Any) -> Array:
            kept = visits.own(visit, part.shape)
            return jnp.where(kept, part[...].astype(jnp.float32), 0).astype(part.dtype)

        total[...] += jax.lax.dot_general(own(x), own(dy), (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)

        @pl.when((visit == last) | (visits.group[jnp.minimum(visit + 1, last)] != group))
        def _() -> None:
            dw[...] = total[...].astype(dw.dtype)

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(visits),
            grid=(pl.cdiv(outputs, width), pl.cdiv(inputs, depth), count),
            in_specs=[
                pl.BlockSpec((height, depth), lambda column, row, visit, _, tile, *__: (tile[visit], row)),
                pl.BlockSpec((height, width), lambda column, row, visit, _, tile, *__: (tile[visit], column)),
            ],
            out_specs=pl.BlockSpec(
                (None, depth, width), lambda column, row, visit, group, *_: (group[visit], row, column)
            ),
            scratch_shapes=[pltpu.VMEM((depth, width), jnp.float32)],
        ),
        out_shape=like(x, (len(sizes), inputs, outputs)),
        compiler_params=_params(cfg),
        cost_estimate=cost(x, dy, rows * inputs * outputs),
        interpret=cfg.interpret,
    )(*visits, x, dy)


def _params(cfg: _Config) -> Any:
    from jax.experimental.pallas import tpu as pltpu

    # What the compiler needs besides the tiles is about as large as they are, at most.
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=2 * cfg.memory
    )


def _product_tiles(cfg: _Config, dtype: Any, inner: int, columns: int) -> tuple[int, int] | None:
    """Returns how much of the sum and how many columns a step takes; None if not even 128 of the sum fit.

    With all of the sum in one step, the matrix of a group is read once for all its tiles.
    """
    size = jnp.dtype(dtype).itemsize
    parts = (part for part in range(1, inner + 1) if part == 1 or inner % (part * _LANES) == 0)
    for depth in (inner // part for part in parts):
        room = cfg.memory - 2 * size * cfg.tile * depth
        most = room // (2 * size * depth + (2 * size + 4) * cfg.tile)
        if most >= min(columns, 2 * _LANES):
            return depth, _even(columns, most)
    return None


def _gradient_tiles(cfg: _Config, dtype: Any, inputs: int, outputs: int) -> tuple[int, int]:
    """Returns rows and columns of the part of a matrix that is summed in one go: the larger, the less is read."""
    size, depth, width = jnp.dtype(dtype).itemsize, inputs, outputs
    while depth * width * (4 + 2 * size) + 2 * size * cfg.tile * (depth + width) > cfg.memory:
        if depth > width:
            depth = _even(depth, depth // 2)
        else:
            width = _even(width, width // 2)
    return depth, width


def _even(size: int, most: int) -> int:
    """Returns the size of even parts, multiples of 128 of at most that many; all of it where it fits."""
    if size <= most:
        return size
    parts = math.ceil(size / (most // _LANES * _LANES))
    return math.ceil(size / (parts * _LANES)) * _LANES
