# SPDX-License-Identifier: Apache-2.0
"""Products with matrices in panels, by a native kernel: for weights that are multiplied by few rows, again and again.

Each number of a result is summed in one order, whatever the number of rows: a row gets the same bits alone and among
others.

Shape letters: R rows, K summed over, N columns, P panels, C columns of a panel.
"""

import jax
import jax.numpy as jnp
from jax import Array

from .._kernel_choice import Support
from ._native import native, native_support
from ._pallas import runs_whole_on


def panel_shape(ins: int, outs: int) -> tuple[int, int, int]:
    """Returns the shape `[P, K, C]` of a matrix `[K, N]` in panels."""
    return -(-outs // native().panel), ins, native().panel


def in_panels(weight: Array) -> Array:
    """Puts a matrix `[K, N]` into panels; behind the last column are zeros."""
    panels, ins, width = panel_shape(*weight.shape)
    filled = jnp.pad(weight, ((0, 0), (0, panels * width - weight.shape[1])))
    return filled.reshape(ins, panels, width).swapaxes(0, 1)


def from_panels(panels: Array, outs: int) -> Array:
    """Returns the matrix `[K, N]` that was put into panels."""
    return panels.swapaxes(0, 1).reshape(panels.shape[1], -1)[:, :outs]


def packs(ins: int, outs: int) -> Support:
    """Says whether a matrix of this shape is worth to be put into panels, and can be."""
    if not (here := native_support()):
        return here
    if outs < (least := native().width):
        return Support(f"it has {outs} columns, expected at least {least}")
    return Support() if ins > 0 else Support("it has no rows")


def multiplies(x: Array) -> Support:
    """Says whether rows can be multiplied by panels where the program will run."""
    if not (here := runs_whole_on("cpu", interpret=False)):
        return here
    return Support() if x.dtype == jnp.float32 else Support(f"rows are {x.dtype}, expected float32")


def packed_product(x: Array, panels: Array, outs: int, scale: Array | None = None) -> Array:
    """Multiplies `[*B, K]` by a matrix in panels, and by a scale of each column; returns `[*B, N]`.

    Args:
        panels: float32, bfloat16 or int8; sums are in float32.
    """
    rows = x.reshape(-1, x.shape[-1])
    call = jax.ffi.ffi_call("dovetail_product", jax.ShapeDtypeStruct((rows.shape[0], outs), x.dtype))
    return call(rows, panels, jnp.zeros(0) if scale is None else scale).reshape(*x.shape[:-1], outs)
