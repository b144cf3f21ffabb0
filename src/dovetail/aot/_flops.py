# SPDX-License-Identifier: Apache-2.0
"""Counts the floating-point operations of a program from its jaxpr.

The rule: a product of matrices of sizes m x k and k x n is 2 m k n operations, a convolution likewise; everything else
is not counted. A loop counts as often as it runs, a kernel in Pallas as it says that it costs. What remat computes
again is counted in a program that contains it: this is the work of a program. That of a model, whatever computes it, is
`count_training_flops`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.interpreters.partial_eval import dce_jaxpr

from dovetail.ops import is_rare, stated_flops


def count_flops(function: Callable[..., Any], *args: Any) -> int:
    """Returns the matrix-product operations of `function(*args)`, which is traced, not run.

    >>> import jax.numpy as jnp
    >>> count_flops(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 5)))
    60
    """
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def count_kernel_flops(jaxpr: Any) -> int:
    """Returns the operations inside of Pallas kernels, of one device. A block that a kernel skips counts as well.

    Not counted are kernels whose results nobody uses, such as those that remat would run again in vain, and what
    runs rarely.
    """
    used, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return sum(map(_count_in_kernels, used.eqns))


class KernelCall(NamedTuple):
    """A Pallas kernel of a program."""

    shapes: tuple[tuple[int, ...], ...]  # Of its operands, on one device.
    flops: int  # Of one run; a block that it skips counts as well.


def kernel_calls(jaxpr: Any) -> list[KernelCall]:
    """Returns the Pallas kernels of a program, each place where one is called."""
    found: list[KernelCall] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "pallas_call":
            found.append(KernelCall(tuple(var.aval.shape for var in eqn.invars), equation_flops(eqn)))
        else:
            found += [call for inner in inner_programs(eqn.params) for call in kernel_calls(inner)]
    return found


def _count_in_kernels(eqn: Any) -> int:
    if is_rare(str(eqn.source_info.name_stack)):
        return 0
    if eqn.primitive.name == "pallas_call":
        return equation_flops(eqn)
    counts = [sum(map(_count_in_kernels, inner.eqns)) for inner in inner_programs(eqn.params)]
    if eqn.primitive.name == "cond":
        return max(counts)
    return sum(counts) * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)


def _count(jaxpr: Any) -> int:
    return sum(equation_flops(eqn) for eqn in jaxpr.eqns)


def equation_flops(eqn: Any) -> int:
    """Returns the operations of one equation of a program."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        lhs = eqn.invars[0].aval
        return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(lhs.shape[dim] for dim in contracted)
    if name == "conv_general_dilated":
        kernel, dims = eqn.invars[1].aval, params["dimension_numbers"]
        taps = math.prod(kernel.shape) // kernel.shape[dims.rhs_spec[0]]
        return 2 * math.prod(eqn.outvars[0].aval.shape) * taps
    if name == "ragged_dot_general":
        lhs, rhs = (var.aval for var in eqn.invars[:2])
        numbers = params["ragged_dot_dimension_numbers"]
        (_, contracted), (_, batch) = numbers.dot_dimension_numbers
        others = {*contracted, *batch, *numbers.rhs_group_dimensions}
        return 2 * math.prod(lhs.shape) * math.prod(n for dim, n in enumerate(rhs.shape) if dim not in others)
    if name == "pallas_call":
        return _kernel_flops(eqn)
    if name == "cond":
        return max(_count(branch.jaxpr) for branch in params["branches"])
    return (params["length"] if name == "scan" else 1) * sum(map(_count, inner_programs(params)))


def _kernel_flops(eqn: Any) -> int:
    """Returns what a kernel says that it takes, or else what it does in one place of its grid, times all places."""
    params = eqn.params
    said = stated_flops(params["name"], [var.aval.shape for var in eqn.invars])
    if said is None and params["cost_estimate"] is not None:
        said = params["cost_estimate"].flops
    if said is not None:
        return said
    times = math.prod(size for size in params["grid_mapping"].grid if isinstance(size, int))
    return times * sum(map(_count, inner_programs(params)))


def inner_programs(params: dict[str, Any]) -> Iterator[Any]:
    """Yields the programs inside an equation: the bodies of loops, calls and custom derivatives."""
    for value in params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            jaxpr = getattr(part, "jaxpr", part)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr
