# SPDX-License-Identifier: Apache-2.0
"""Counts the operations of training a model: what it takes by definition, whatever computes it and wherever.

The rule: each product of matrices counts once forward, and in the backward pass once more for each of its two sides
that a trained parameter reaches. For a model that is trained as a whole this is 6 for each parameter that a token is
multiplied by, and 3 times the forward pass of attention. Attention counts the scores that the mask lets through, a
recurrence what its definition says (see `dovetail.ops.Work`), experts the rows that are sent to them, and a look-up
nothing. No kernel, chunk, remat policy or mesh changes it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from dovetail.ops import Work, by_definition

from ._flops import equation_flops, inner_programs

_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")
_NOTHING = Work(0, 0)


def count_training_flops(function: Callable[..., Any], params: Any, trained: Any, *args: Any) -> Work:
    """Returns what one step of training takes, forward and backward, if `function(params, *args)` gives the loss.

    >>> x, w = jnp.ones((2, 3)), jnp.ones((3, 5))
    >>> count_training_flops(lambda w, x: jnp.sum(x @ w), w, True, x)  # The inputs need no gradient.
    Work(flops=120, full=120)

    Args:
        trained: a tree like `params`, of booleans: which of them get a gradient.
    """
    with by_definition():
        program = jax.make_jaxpr(function)(params, *args)
    flags = [*map(bool, jax.tree.leaves(trained)), *[False] * len(jax.tree.leaves(args))]
    return _walk(program.jaxpr, flags)[0]


def _walk(jaxpr: Any, needs: Sequence[bool]) -> tuple[Work, list[bool]]:
    """Returns the work of a program, and which of its results a trained parameter reaches, given that of its inputs."""
    reached = dict(zip(jaxpr.invars, needs, strict=True))

    def need(var: Any) -> bool:
        return not isinstance(var, Literal) and reached.get(var, False)

    total = _NOTHING
    for eqn in jaxpr.eqns:
        work, found = _equation(eqn, [need(var) for var in eqn.invars])
        total = _add(total, work)
        for var, flag in zip(eqn.outvars, found, strict=True):
            reached[var] = flag and jnp.issubdtype(var.aval.dtype, jnp.inexact)
    return total, [need(var) for var in jaxpr.outvars]


def _equation(eqn: Any, needs: list[bool]) -> tuple[Work, list[bool]]:
    name, params, count = eqn.primitive.name, eqn.params, len(eqn.outvars)
    if name in _PRODUCTS:
        flops = equation_flops(eqn)
        return _times(Work(flops, flops), 1 + sum(needs[:2])), [any(needs)] * count
    if name in ("work", "pallas_call"):
        flops = params["work"] if name == "work" else Work(*[equation_flops(eqn)] * 2)
        return _times(flops, 1 + min(2, sum(needs))), [any(needs)] * count
    if name == "stop_gradient":
        return _NOTHING, [False] * count
    if name == "scan":
        consts, carries = params["num_consts"], params["num_carry"]
        work, found = _loop(params["jaxpr"].jaxpr, needs, consts, carries)
        return _times(work, params["length"]), found
    if name == "while":
        consts = params["body_nconsts"]
        return _loop(params["body_jaxpr"].jaxpr, needs[params["cond_nconsts"] :], consts, len(needs))
    if name == "cond":
        branches = [_walk(branch.jaxpr, needs[1:]) for branch in params["branches"]]
        return max(work for work, _ in branches), [any(flags) for flags in zip(*(f for _, f in branches), strict=True)]
    return _called(eqn, needs)


def _loop(body: Any, needs: list[bool], consts: int, carries: int) -> tuple[Work, list[bool]]:
    """Walks the body until the flags of what goes from one run to the next stay as they are."""
    while True:
        work, found = _walk(body, needs)
        carried = [a or b for a, b in zip(needs[consts : consts + carries], found[:carries], strict=False)]
        grown = [*needs[:consts], *carried, *needs[consts + len(carried) :]]
        if grown == needs:
            return work, found
        needs = grown


def _called(eqn: Any, needs: list[bool]) -> tuple[Work, list[bool]]:
    """Walks the programs inside of any other equation; most have one, with the same inputs."""
    total, found = _NOTHING, [any(needs)] * len(eqn.outvars)
    for inner in inner_programs(eqn.params):
        same = len(inner.invars) == len(needs)
        work, flags = _walk(inner, needs if same else [any(needs)] * len(inner.invars))
        total = _add(total, work)
        found = flags if same and len(flags) == len(found) else found
    return total, found


def _add(a: Work, b: Work) -> Work:
    return Work(a.flops + b.flops, a.full + b.full)


def _times(work: Work, factor: int) -> Work:
    return Work(work.flops * factor, work.full * factor)
