# SPDX-License-Identifier: Apache-2.0
"""What the backward pass of an attention kernel needs, under a name by which it can be kept."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from dovetail.module import kernel_result

RESIDUALS = "attended"  # As layers tag what comes out of attention: who keeps that keeps these.


def with_named_residuals(attend: Callable[[Any, Any], Array]) -> Callable[[Any, Any], Array]:
    """Returns `attend(inputs, others)`, with names for its result and for what the gradients of `inputs` need besides.

    Without them, a remat policy that keeps the result would run the kernel again for the rest.
    """

    @jax.custom_vjp
    def run(inputs: Any, others: Any) -> Array:
        return attend(inputs, others)

    def forward(inputs: Any, others: Any) -> tuple[Array, Any]:
        out, pull = jax.vjp(lambda inputs: attend(inputs, others), inputs)
        result, given = kernel_result(RESIDUALS, out), jax.tree.leaves((inputs, others))

        def named(x: Array) -> Array:
            if x is out:
                return result
            return x if any(x is each for each in given) else kernel_result(RESIDUALS, x)

        return result, jax.tree.map(named, pull)

    def backward(pull: Any, gradient: Array) -> tuple[Any, None]:
        return (*pull(gradient), None)

    run.defvjp(forward, backward)
    return run
