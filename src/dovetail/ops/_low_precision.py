# SPDX-License-Identifier: Apache-2.0
"""Products of matrices in numbers of 8 bits, forward and backward.

Each row on the left and each column on the right has a scale of its own, by which its largest element becomes the
largest number of the format. Gradients are products too, of rows and columns in other directions: these are rounded
anew, from the numbers that came in.

Shape letters: M rows, K summed over, N columns.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Rounded = Literal["none", "inputs", "all"]  # Of the gradients: those of inputs alone, or of weights too.


class _Formats(NamedTuple):
    """What inputs and weights, and what the gradients that come from above, are rounded to."""

    values: Any
    slopes: Any


_INT8 = _Formats(jnp.int8, jnp.int8)
# Gradients differ more in size than in detail: 5 bits of exponent.
_FLOAT8 = _Formats(jnp.float8_e4m3fn, jnp.float8_e5m2)


def int8_matmul(x: Array, weight: Array, *, gradients: Rounded) -> Array:
    """Multiplies `[M, K]` by `[K, N]` in 8-bit integers, summed in int32, exactly as long as K is below 2 ** 17.

    The result has the dtype of `x`. For gradients, rounding is taken to be the identity.

    Args:
        gradients: which of them are products of 8-bit integers too; the others are in the dtypes of `x` and `weight`.

    References: Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference, 2017 (arXiv:1712.05877), for products in integers and the gradient of rounding; Wortsman et al., Stable
    and Low-Precision Training for Large-Scale Vision-Language Models, 2023 (arXiv:2304.13013), for scales of rows and
    columns, and for `gradients="inputs"`.
    """
    return _matmul(_INT8, gradients, x, weight)


def float8_matmul(x: Array, weight: Array, *, gradients: Rounded) -> Array:
    """Multiplies `[M, K]` by `[K, N]` in 8-bit floating point: 4 bits of exponent, and 5 for the gradients from above.

    The result has the dtype of `x`. Sums are in float32; where `x` is bfloat16, they are rounded to it before the
    scales, as matrix units do without a further pass. For gradients, rounding is taken to be the identity.

    Args:
        gradients: which of them are such products too; the others are in the dtypes of `x` and `weight`.

    Reference: Micikevicius et al., FP8 Formats for Deep Learning, 2022 (arXiv:2209.05433).
    """
    return _matmul(_FLOAT8, gradients, x, weight)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _matmul(formats: _Formats, gradients: Rounded, x: Array, weight: Array) -> Array:
    return _product(x, weight, formats.values, formats.values)


def _forward(formats: _Formats, gradients: Rounded, x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _matmul(formats, gradients, x, weight), (x, weight)


def _backward(formats: _Formats, gradients: Rounded, kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    (x, weight), (values, slopes) = kept, formats
    dx = slope @ weight.T if gradients == "none" else _product(slope, weight.T, slopes, values)
    dw = _product(x.T, slope, values, slopes) if gradients == "all" else x.T @ slope
    return dx, dw


_matmul.defvjp(_forward, _backward)


def _product(a: Array, b: Array, a_format: Any, b_format: Any) -> Array:
    rows, row_scales = _rounded(a, 1, a_format)
    columns, column_scales = _rounded(b, 0, b_format)
    if jnp.issubdtype(a_format, jnp.integer):
        wide = jnp.int32
    else:
        wide = jnp.bfloat16 if a.dtype == jnp.bfloat16 else jnp.float32
    sums = jax.lax.dot(rows, columns, preferred_element_type=wide)
    return (sums.astype(jnp.float32) * row_scales * column_scales).astype(a.dtype)


def _rounded(x: Array, axis: int, to: Any) -> tuple[Array, Array]:
    """Returns numbers of a format and float32 scales whose product is `x`, but for rounding to nearest."""
    integer, x = jnp.issubdtype(to, jnp.integer), x.astype(jnp.float32)
    # Of integers, the smallest is left out, so that the range is symmetric.
    largest = float((jnp.iinfo if integer else jnp.finfo)(to).max)
    scales = jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0.0) / largest
    scaled = x / jnp.where(scales == 0, 1.0, scales)
    return (jnp.round(scaled) if integer else scaled).astype(to), scales
