# SPDX-License-Identifier: Apache-2.0
"""The loop over layers: one layer, or a few in turn, many times, each time with parameters and state of its own."""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# `_name` of a child is private to this package, not to its file; JAX's own annotations are incomplete.

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from ._call import unscoped
from ._context import Collected, Scope, State, own_scope
from ._layout import Layout
from ._lift import Key, Lifted, folded, lift, mark_stacked, run_layer
from ._module import Module
from ._published import Context, Published, after
from ._state import StateSpecs
from ._tree import join

Loop = Literal["scan", "unroll"]


def repeat(module: Module, layers: Sequence[Module], count: int, loop: Loop, x: Array, context: Context) -> Array:
    """Runs `layers` in turn, `count` times over; `module` declared each as a child with `stack=count`.

    A layer is called as `layer(x, context)`, and returns `x` with the shape and dtype it had. What it publishes is in
    the context of all layers after it.

    Args:
        loop: "scan" compiles each layer once; "unroll" as often as it runs: slower to compile, sometimes faster to run.
    """
    scope = own_scope(module, "the loop")
    frame, names = scope.frame, [layer._name for layer in layers]
    prefixes = tuple(join(scope.path, f"{name}.") for name in names)
    state = {k: v for k, v in (frame.state or {}).items() if k.startswith(prefixes)}
    params = {name: scope.params[name] for name in names}
    each = (jnp.arange(count) if state or frame.rng is not None else None, params)
    declared: StateSpecs = {}

    def some(length: int, carry: Any, each: Any, inputs: Any, key: Key, layout: Layout | None) -> tuple[Any, Collected]:
        apart = loop == "scan" and length > 1  # Compilers take the loop away from a scan of one step.
        changes: dict[str, Any] = {"in_loop": True, "apart": apart, "layout": layout, "declared": declared}
        lifted = {layer._name: _lifted(scope, layer, **changes) for layer in layers}
        grows = loop == "unroll" and length == count  # All rounds are here, and not in a stage of a pipeline.
        one = _one_round(lifted, key, frame.state is not None, inputs, grows)
        if loop == "scan":
            return jax.lax.scan(one, carry, each, length=length)
        results: list[Collected] = []
        for item in _apart(each, length):
            carry, result = one(carry, item)
            results.append(result)
        return carry, jax.tree.map(_stack, *results)

    # Loops in loops, and decoding: plain.
    layout = None if frame.in_loop or frame.state is not None else frame.layout

    def run(shared: Mapping[str, Published]) -> tuple[Any, Collected]:
        given = (count, (x, dict(shared), state), each, context.sharing({}), frame.rng)
        elsewhere = None if layout is None else layout.loop(some, module.path, *given)
        return elsewhere or some(*given, frame.layout)

    try:
        (out, shared, new_state), collected = run(context.shared)
    except _Unknown as e:
        places = {name: _place_for(each, x.shape[0]) for name, each in e.published.items()}
        (out, shared, new_state), collected = run({**context.shared, **places})
    if frame.state is not None:
        frame.state.update(new_state)
    frame.declared.update({path: spec.stacked(count) for path, spec in declared.items()})
    frame.take(mark_stacked(scope, collected))
    frame.published = {**frame.published, **shared}
    return out


def _lifted(scope: Scope, layer: Module, **changes: Any) -> Lifted:
    inner = Scope(scope.frame, layer, scope.params[layer._name], join(scope.path, layer._name))
    return lift(inner, unscoped(layer, "forward"), run_layer, **changes)


def _apart(stacked: Any, count: int) -> list[Any]:
    """Takes stacked arrays apart. The gradient of a split is one concatenation, that of slices a sum of padded ones."""
    leaves, tree = jax.tree.flatten(stacked)
    parts = [jax.lax.split(leaf, (1,) * count) for leaf in leaves]
    return [jax.tree.unflatten(tree, [part[i][0] for part in parts]) for i in range(count)]


def _stack(*leaves: Array) -> Array:
    return jnp.stack(leaves)


def _place_for(like: Published, rows: int) -> Published:
    """Returns the place for a value that nobody has published yet; the trace saw it with the rows of a microbatch."""

    def zeros(leaf: Array) -> Array:
        return jnp.zeros((rows, *leaf.shape[1:]), leaf.dtype)

    return jax.tree.map(zeros, like)


class _Unknown(Exception):
    """Ends the trace of a loop whose layers publish what it does not carry: it is traced again, with places for it."""

    def __init__(self, published: Mapping[str, Published]) -> None:
        super().__init__(*published)
        self.published = published


def _one_round(layers: Mapping[str, Lifted], key: Key, stateful: bool, context: Context, grows: bool) -> Any:
    """Returns a step of the loop: `x`, what is published and the state of all rounds are carried.

    What is published for the first time raises `_Unknown`, unless what is carried may grow.

    State is changed in place. If it went in with the parameters and came out with the results, every call would copy
    all of it.
    """

    def one(carry: tuple[Any, Any, State], each: Any) -> tuple[tuple[Any, Any, State], Collected]:
        (x, carried, state), (index, params) = carry, each
        old = {path: _at(index, value) for path, value in state.items()}
        rng = folded(key, lambda: index)
        shared, now = dict(carried), old if stateful else None
        reports = Collected()
        for name, layer in layers.items():
            x, found = layer(params[name], now, rng, x, context.sharing(shared))
            shared, now = after(shared, found.published), found.state
            reports = Collected(
                reports.summaries | found.summaries,
                reports.losses | found.losses,
                updates=reports.updates | found.updates,
            )
        if not grows and shared.keys() != carried.keys():
            raise _Unknown({name: jax.tree.map(_abstract, shared[name]) for name in shared.keys() - carried.keys()})
        new = {path: value for path, value in (now or {}).items() if value is not old.get(path)}
        written = {path: _put(index, state[path], value) for path, value in new.items()}
        return (x, shared, {**state, **written}), dataclasses.replace(reports, state={} if stateful else None)

    return one


def _at(index: Array, stacked: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(stacked, index, keepdims=False)


def _put(index: Array, stacked: Array, value: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(stacked, value, index, 0)


def _abstract(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
