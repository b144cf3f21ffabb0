# SPDX-License-Identifier: Apache-2.0
"""Modules made of other modules: `Sequence`, one after the other, and `Repeat`, the same layer many times."""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# `_path` of a child is private to this package, not to its file; JAX's own annotations are incomplete.

from collections import abc
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError

from ._call import unscoped
from ._context import Collected, Scope, State, own_scope
from ._layout import Layout
from ._lift import Key, Lifted, folded, lift, mark_stacked, run_layer
from ._module import Module
from ._tree import join


class Sequence(Module):
    """Passes `x` through its layers in order; every layer gets the other arguments as they are."""

    class Config(Module.Config):
        layers: abc.Sequence[Module.Config] = REQUIRED

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self.layers = [self.child(f"layers[{i}]", layer) for i, layer in enumerate(cfg.layers)]

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *args, **kwargs)
        return x


class Repeat(Module):
    """Passes `x` through `num_repeats` copies of one layer, each with parameters and state of its own.

    The parameters are stacked along a new first dimension, the logical axis "layers". The layer may be a `Sequence`,
    for a pattern that repeats: five local layers, then a global one. Compiled once, whatever the number.
    """

    class Config(Module.Config):
        layer: Module.Config = REQUIRED
        num_repeats: int = REQUIRED
        # "scan" compiles one layer; "unroll" compiles all of them: slower to compile, sometimes faster to run.
        loop: Literal["scan", "unroll"] = "scan"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if cfg.num_repeats < 1:
            raise ConfigError(f"{self!r}: num_repeats is {cfg.num_repeats}, expected at least 1.")
        self.layer = self.child("layer", cfg.layer, stack=cfg.num_repeats)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return repeat(self, [self.layer], self.cfg.num_repeats, self.cfg.loop, x, *args, **kwargs)


def repeat(
    module: Module,
    layers: abc.Sequence[Module],
    count: int,
    loop: Literal["scan", "unroll"],
    x: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Runs `layers` in turn, `count` times over; `module` declared each as a child with `stack=count`.

    Every layer gets the other arguments as they are; `x` must keep its shape and dtype.
    """
    scope = own_scope(module, "the loop")
    frame, names = scope.frame, [layer._name for layer in layers]
    prefixes = tuple(join(module.path, f"{name}.") for name in names)
    state = {k: v for k, v in (frame.state or {}).items() if k.startswith(prefixes)}
    params = {name: scope.params[name] for name in names}
    each = (jnp.arange(count) if state or frame.rng is not None else None, params)

    def some(length: int, carry: Any, each: Any, inputs: Any, key: Key, layout: Layout | None) -> tuple[Any, Collected]:
        apart = loop == "scan" and length > 1  # Compilers take the loop away from a scan of one step.
        lifted = {layer._name: _lifted(scope, layer, in_loop=True, apart=apart, layout=layout) for layer in layers}
        one = _one_round(lifted, key, frame.state is not None, *inputs)
        if loop == "scan":
            return jax.lax.scan(one, carry, each, length=length)
        results: list[Collected] = []
        for item in _apart(each, length):
            carry, result = one(carry, item)
            results.append(result)
        return carry, jax.tree.map(_stack, *results)

    given = (count, (x, state), each, (args, kwargs), frame.rng)
    layout = None if frame.in_loop or frame.state is not None else frame.layout  # Loops in loops, and decoding: plain.
    elsewhere = None if layout is None else layout.loop(some, module.path, *given)
    (x, state), collected = elsewhere or some(*given, frame.layout)
    if frame.state is not None:
        frame.state.update(state)
    frame.take(mark_stacked(scope, collected))
    return x


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


def _one_round(layers: abc.Mapping[str, Lifted], key: Key, stateful: bool, args: Any, kwargs: Any) -> Any:
    """Returns a step of the loop: `x` and the state of all rounds are carried, each round has an index and parameters.

    Decode state is changed in place. If it went in with the parameters and came out with the results, every call would
    copy all of it; only what is new, or has got another shape, takes that way out.
    """

    def one(carry: tuple[Any, State], each: Any) -> tuple[tuple[Any, State], Collected]:
        (x, state), (index, params) = carry, each
        old = {path: jax.tree.map(partial(_at, index), value) for path, value in state.items()}
        rng = folded(key, lambda: index)
        summaries, losses, now = dict[str, Array](), dict[str, Array](), old if stateful else None
        for name, layer in layers.items():
            x, found = layer(params[name], now, rng, x, *args, **kwargs)
            summaries, losses, now = summaries | found.summaries, losses | found.losses, found.state
        if now is None:
            return (x, state), Collected(summaries, losses, None)
        new = {path: value for path, value in now.items() if value is not old.get(path)}
        fits = {path for path, value in new.items() if path in old and _types(value) == _types(old[path])}
        written = {path: jax.tree.map(partial(_put, index), state[path], new[path]) for path in fits}
        started = {path: value for path, value in new.items() if path not in fits}
        return (x, {**state, **written}), Collected(summaries, losses, started)

    return one


def _at(index: Array, stacked: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(stacked, index, keepdims=False)


def _put(index: Array, stacked: Array, value: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(stacked, value, index, 0)


def _types(value: Any) -> Any:
    return jax.tree.map(_type, value)


def _type(leaf: Array) -> tuple[tuple[int, ...], Any]:
    return leaf.shape, leaf.dtype
