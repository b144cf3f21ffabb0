# SPDX-License-Identifier: Apache-2.0
"""Products of matrices in 8-bit integers.

Shape letters: M rows, K summed over, N columns.
"""

import jax
import jax.numpy as jnp
from jax import Array

_LARGEST = 127  # -128 is left out, so that the range is symmetric.


@jax.custom_vjp
def int8_matmul(x: Array, weight: Array) -> Array:
    """Multiplies `[M, K]` by `[K, N]` with both rounded to 8 bits; the gradient is that of the exact product.

    Each row of `x` and each column of `weight` has a scale of its own, from its largest element. Products are summed
    in int32, exactly as long as K is below 2 ** 17. The result has the dtype of `x`.

    The gradient takes rounding to be the identity and is computed in the dtypes of `x` and `weight`.

    Reference: Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference, 2017 (arXiv:1712.05877), for products in integers and for the gradient; scales are per vector here.
    """
    rows, row_scales = _rounded(x, axis=1)
    columns, column_scales = _rounded(weight, axis=0)
    sums = jnp.matmul(rows, columns, preferred_element_type=jnp.int32)
    return (sums.astype(jnp.float32) * row_scales * column_scales).astype(x.dtype)


def _rounded(x: Array, axis: int) -> tuple[Array, Array]:
    """Returns integers and float32 scales whose product is `x`, off by half a scale at most."""
    x = x.astype(jnp.float32)
    scales = jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0.0) / _LARGEST
    return jnp.round(x / jnp.where(scales == 0, 1.0, scales)).astype(jnp.int8), scales


def _forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return int8_matmul(x, weight), (x, weight)


def _backward(kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    x, weight = kept
    return slope @ weight.T, x.T @ slope


int8_matmul.defvjp(_forward, _backward)
