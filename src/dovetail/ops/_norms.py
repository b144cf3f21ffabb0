# SPDX-License-Identifier: Apache-2.0
"""Normalisation over the last axis, or groups of it. Statistics are in float32; results have the dtype of the input."""

import jax
import jax.numpy as jnp
from jax import Array

from .kernels._elementwise import is_native, native_rms_norm


def rms_norm(x: Array, scale: Array | None, *, eps: float, offset: float = 0.0, groups: int = 1) -> Array:
    """Scales `x` to unit root-mean-square over its last axis, then by `scale + offset`.

    >>> rms_norm(jnp.array([2.0, -2.0]), jnp.ones(2), eps=0.0)
    Array([ 1., -1.], dtype=float32)

    Reference: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019 (arXiv:1910.07467).
    """
    if is_native(x, *([] if scale is None else [scale])):
        return native_rms_norm(x, scale, eps, offset, groups)
    x32 = _grouped(x.astype(jnp.float32), groups)
    y = (x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)).reshape(x.shape)
    if scale is None:
        return y.astype(x.dtype)
    factor = scale.astype(jnp.float32)
    return (y * (factor + offset if offset else factor)).astype(x.dtype)


def layer_norm(x: Array, scale: Array | None, bias: Array | None, *, eps: float, groups: int = 1) -> Array:
    """Shifts and scales `x` to zero mean and unit variance over its last axis, then by `scale` and `bias`.

    Reference: Ba, Kiros and Hinton, Layer Normalization, 2016 (arXiv:1607.06450).
    """
    x32 = _grouped(x.astype(jnp.float32), groups)
    centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    y = (centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + eps)).reshape(x.shape)
    y = y if scale is None else y * scale.astype(jnp.float32)
    return (y if bias is None else y + bias.astype(jnp.float32)).astype(x.dtype)


def _grouped(x: Array, groups: int) -> Array:
    """Maps `[*B, N]` to `[*B, groups, N / groups]`, if there is more than one."""
    return x if groups == 1 else x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
