# SPDX-License-Identifier: Apache-2.0
"""What the backward pass of an attention kernel needs, under a name by which it can be kept."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

RESIDUALS = "attended"  # The name that layers give to what comes out of attention.


def with_named_residuals(attend: Callable[..., Array]) -> Callable[..., Array]:
    """Returns `attend(q, k, v, others)`, with names for its result and for what it keeps for the gradients.

    Without them, a remat policy that keeps the result would run the kernel again for the rest.
    """

    @jax.custom_vjp
    def run(q: Array, k: Array, v: Array, others: Any) -> Array:
        return attend(q, k, v, others)

    def forward(q: Array, k: Array, v: Array, others: Any) -> tuple[Array, Any]:
        out, pull = jax.vjp(lambda q, k, v: attend(q, k, v, others), q, k, v)
        result = checkpoint_name(out, RESIDUALS)
        given = jax.tree.leaves((q, k, v, others))

        def named(x: Array) -> Array:
            if x is out:
                return result
            return x if any(x is each for each in given) else checkpoint_name(x, RESIDUALS)

        return result, jax.tree.map(named, pull)

    def backward(pull: Any, gradient: Array) -> tuple[Any, ...]:
        return (*pull(gradient), None)

    run.defvjp(forward, backward)
    return run
