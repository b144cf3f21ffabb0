# SPDX-License-Identifier: Apache-2.0
"""Counts the operations of training a model: what it takes by definition, whatever computes it and wherever.

The rule: each product of matrices counts once forward, and in the backward pass once more for each of its two sides
that a trained parameter reaches. For a model that is trained as a whole this is 6 for each parameter that an input is
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
_Works = dict[str, Work]  # By scope; what has none of its own is at "".


def count_training_flops(function: Callable[..., Any], params: Any, trained: Any, *args: Any) -> Work:
    """Returns what one step of training takes, forward and backward, if `function(params, *args)` gives the loss.

    >>> x, w = jnp.ones((2, 3)), jnp.ones((3, 5))
    >>> count_training_flops(lambda w, x: jnp.sum(x @ w), w, True, x)  # The inputs need no gradient.
    Work(flops=120, full=120)

    Args:
        trained: a tree like `params`, of booleans: which of them get a gradient.
    """
    return _total(training_flops_by_scope(function, params, trained, *args))


def training_flops_by_scope(function: Callable[..., Any], params: Any, trained: Any, *args: Any) -> dict[str, Work]:
    """Returns the same by the scopes (`jax.named_scope`) that it is in, as `model/stack/layer/ffn/up`."""
    with by_definition():
        program = jax.make_jaxpr(function)(params, *args)
    flags = [*map(bool, jax.tree.leaves(trained)), *[False] * len(jax.tree.leaves(args))]
    return _walk(program.jaxpr, flags)[0]


def _walk(jaxpr: Any, needs: Sequence[bool]) -> tuple[_Works, list[bool]]:
    """Returns the work of a program, and which of its results a trained parameter reaches, given that of its inputs."""
    reached = dict(zip(jaxpr.invars, needs, strict=True))

    def need(var: Any) -> bool:
        return not isinstance(var, Literal) and reached.get(var, False)

    total: _Works = {}
    for eqn in jaxpr.eqns:
        works, found = _equation(eqn, [need(var) for var in eqn.invars])
        if works:
            _add(total, works, str(eqn.source_info.name_stack))
        for var, flag in zip(eqn.outvars, found, strict=True):
            reached[var] = flag and jnp.issubdtype(var.aval.dtype, jnp.inexact)
    return total, [need(var) for var in jaxpr.outvars]


def _equation(eqn: Any, needs: list[bool]) -> tuple[_Works, list[bool]]:
    name, params, count = eqn.primitive.name, eqn.params, len(eqn.outvars)
    if name in _PRODUCTS:
        flops = equation_flops(eqn)
        return _times({"": Work(flops, flops)}, 1 + sum(needs[:2])), [any(needs)] * count
    if name in ("work", "pallas_call"):
        flops = params["work"] if name == "work" else Work(*[equation_flops(eqn)] * 2)
        return _times({"": flops}, 1 + min(2, sum(needs))), [any(needs)] * count
    if name == "stop_gradient":
        return {}, [False] * count
    if name == "scan":
        consts, carries = params["num_consts"], params["num_carry"]
        works, found = _loop(params["jaxpr"].jaxpr, needs, consts, carries)
        return _times(works, params["length"]), found
    if name == "while":
        consts = params["body_nconsts"]
        return _loop(params["body_jaxpr"].jaxpr, needs[params["cond_nconsts"] :], consts, len(needs))
    if name == "cond":
        branches = [_walk(branch.jaxpr, needs[1:]) for branch in params["branches"]]
        most = max((works for works, _ in branches), key=_total)
        return most, [any(flags) for flags in zip(*(f for _, f in branches), strict=True)]
    return _called(eqn, needs)


def _loop(body: Any, needs: list[bool], consts: int, carries: int) -> tuple[_Works, list[bool]]:
    """Walks the body until the flags of what goes from one run to the next stay as they are."""
    while True:
        works, found = _walk(body, needs)
        carried = [a or b for a, b in zip(needs[consts : consts + carries], found[:carries], strict=False)]
        grown = [*needs[:consts], *carried, *needs[consts + len(carried) :]]
        if grown == needs:
            return works, found
        needs = grown


def _called(eqn: Any, needs: list[bool]) -> tuple[_Works, list[bool]]:
    """Walks the programs inside of any other equation; most have one, with the same inputs."""
    total: _Works = {}
    found = [any(needs)] * len(eqn.outvars)
    for inner in inner_programs(eqn.params):
        same = len(inner.invars) == len(needs)
        works, flags = _walk(inner, needs if same else [any(needs)] * len(inner.invars))
        _add(total, works, "")
        found = flags if same and len(flags) == len(found) else found
    return total, found


def _add(total: _Works, works: _Works, scope: str) -> None:
    """Adds works to a total, where their scopes lie in `scope`."""
    for inner, work in works.items():
        place = f"{scope}/{inner}".strip("/")
        before = total.get(place, _NOTHING)
        total[place] = Work(before.flops + work.flops, before.full + work.full)


def _total(works: _Works) -> Work:
    return Work(sum(work.flops for work in works.values()), sum(work.full for work in works.values()))


def _times(works: _Works, factor: int) -> _Works:
    return {scope: Work(work.flops * factor, work.full * factor) for scope, work in works.items()}
