# SPDX-License-Identifier: Apache-2.0
"""Shapes of what programs are given, without the arrays."""

from typing import Any

import jax
import jax.numpy as jnp


def int_of(shape: tuple[int, ...]) -> Any:
    """Returns the shape of integers."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def abstract_inputs(rows: int, time: int) -> tuple[Any, dict[str, Any]]:
    """Returns the shapes of tokens, and of what else a call of the layers is given."""
    return int_of((rows, time)), {"lengths": int_of((rows,)), "start": int_of((rows,))}
