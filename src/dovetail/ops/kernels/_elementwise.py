# SPDX-License-Identifier: Apache-2.0
"""What is done to each row by itself, by native kernels, in programs that serve on a CPU.

XLA computes the same on one thread, and cosines and sines of positions anew in each layer. These kernels have no
gradients, so they are used only where a program is traced `by_native_kernels`.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._native import native_support
from ._pallas import runs_whole_on

# Not a context variable: JAX must not take a function that it has traced outside for the same one inside.
_native = jax.make_user_context(False)


def by_native_kernels(use: bool = True) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which norms, rotary positions, gates and the most likely token are native, if they can."""
    return _native(use)


def is_native(*arrays: Array) -> bool:
    """Whether the program that is being traced computes rows of these arrays by native kernels."""
    if not _native.value or not native_support() or not runs_whole_on("cpu", interpret=False):
        return False
    return all(each.dtype == jnp.float32 and each.size > 0 for each in arrays)


def native_rms_norm(x: Array, scale: Array | None, eps: float, offset: float, groups: int) -> Array:
    """See `rms_norm`."""
    numbers = {"eps": np.float32(eps), "offset": np.float32(offset), "groups": np.int64(groups)}
    return _call("dovetail_rms_norm", x)(x, jnp.zeros(0) if scale is None else scale, **numbers)


def native_rotate(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Turns `[B, T, H, K]` by angles with these cosines and sines, `[B or 1, T, 1, K / 2]`; see `rotate`."""
    return _call("dovetail_rotate", x)(x, cos, sin, interleaved=interleaved)


def native_silu_gated(gate: Array, up: Array) -> Array:
    """Returns `silu(gate) * up`."""
    return _call("dovetail_silu_gated", gate)(gate, up)


def native_add(a: Array, b: Array) -> Array:
    """Returns `a + b`, of one shape."""
    return _call("dovetail_add", a)(a, b)


def native_argmax(x: Array) -> Array:
    """Returns where the largest number of each row `[R, N]` is, as int32."""
    return jax.ffi.ffi_call("dovetail_argmax", jax.ShapeDtypeStruct(x.shape[:1], jnp.int32))(x)


def native_write(pages: Array, new: Array, page: Array, inside: Array) -> Array:
    """Returns pages `[P, L, ...]` with rows `[B, T, ...]` at places `[B, T]` of them; beyond the last page: dropped."""
    call = jax.ffi.ffi_call(
        "dovetail_write_pages", jax.ShapeDtypeStruct(pages.shape, pages.dtype), input_output_aliases={0: 0}
    )
    return call(pages, new, page.astype(jnp.int32), inside.astype(jnp.int32))


def _call(name: str, x: Array):
    return jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(x.shape, x.dtype))
