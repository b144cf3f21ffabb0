# SPDX-License-Identifier: Apache-2.0
"""What is in a program: its equations at every depth, shapes of arrays, work of matrix products, memory."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def equations(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Yields each equation that has a result, those inside of others included, and how often it runs."""
    for eqn in jaxpr.eqns:
        if not eqn.outvars and not eqn.effects:
            continue
        yield eqn, times
        inner = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        for param in jax.tree.leaves(eqn.params, is_leaf=lambda x: isinstance(x, (ClosedJaxpr, Jaxpr))):
            if isinstance(param, (ClosedJaxpr, Jaxpr)):
                yield from equations(param, inner)


def shapes(jaxpr: Any) -> set[tuple[int, ...]]:
    """Returns the shapes of all arrays that any equation makes."""
    return {variable.aval.shape for eqn, _ in equations(jaxpr) for variable in eqn.outvars}


def dot_flops(jaxpr: Any) -> int:
    """Returns the number of multiplications and additions in matrix products."""
    total = 0
    for eqn, times in equations(jaxpr):
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            summed = math.prod(eqn.invars[0].aval.shape[dim] for dim in contracted)
            total += 2 * times * summed * math.prod(eqn.outvars[0].aval.shape)
    return total


def temporary_bytes(function: Callable[..., Any], *args: Any) -> int:
    """Returns the memory that the compiled function needs besides its arguments and results."""
    memory = jax.jit(function).lower(*args).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes
