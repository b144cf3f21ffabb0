# SPDX-License-Identifier: Apache-2.0
"""Gated activations: functions of a gate and of what it gates, both of the same shape."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from .kernels._elementwise import is_native, native_silu_gated

Gated = Callable[[Array, Array], Array]


def gated(activation: Callable[[Array], Array] = jax.nn.silu) -> Gated:
    """Returns `activation(gate) * up`.

    Reference: Shazeer, GLU Variants Improve Transformer, 2020 (arXiv:2002.05202).
    """

    def function(gate: Array, up: Array) -> Array:
        if activation is jax.nn.silu and is_native(gate, up):
            return native_silu_gated(gate, up)
        return activation(gate) * up

    return function


def clamped_swiglu(alpha: float = 1.702, limit: float = 7.0) -> Gated:
    """Returns `gate * sigmoid(alpha * gate) * (up + 1)`, with both clamped: the gate from above, `up` on both sides.

    Reference: OpenAI, gpt-oss-120b and gpt-oss-20b Model Card, 2025 (arXiv:2508.10925).
    """

    def function(gate: Array, up: Array) -> Array:
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
        return gate * jax.nn.sigmoid(alpha * gate) * (up + 1)

    return function
