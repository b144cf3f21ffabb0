# SPDX-License-Identifier: Apache-2.0
"""Shapes of what programs are given, without the arrays.

Shape letters: R rows, T time.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ._device import DeviceShape
from ._draw import DrawParams
from ._request import MOST_BIASED


def real_of(shape: tuple[int, ...]) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def int_of(shape: tuple[int, ...]) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def abstract_inputs(rows: int, time: int) -> tuple[Any, dict[str, Any]]:
    return int_of((rows, time)), {"lengths": int_of((rows,)), "start": int_of((rows,))}


def abstract_draw(shape: DeviceShape, rows: int) -> DrawParams:
    real, ints, mask = real_of((rows,)), int_of((rows,)), int_of((rows, -(-shape.vocab_size // 32)))
    seed: Any = jax.ShapeDtypeStruct((rows,), jnp.uint32)
    biases = (int_of((rows, MOST_BIASED)), real_of((rows, MOST_BIASED)))
    return DrawParams(real, ints, real, real, real, real, real, seed, ints, ints, mask, *biases)
