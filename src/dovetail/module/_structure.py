# SPDX-License-Identifier: Apache-2.0
"""Modules made of other modules: `Sequence`, one after the other, and `Repeat`, the same layer many times."""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# `_path` of a child is private to this package, not to its file; JAX's own annotations are incomplete.

import dataclasses
from collections import abc
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError

from ._context import Collected, Scope, join, own_scope, run, unscoped
from ._module import Module


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
    names = [layer._name for layer in layers]
    one = _one_round(scope, layers, args, kwargs)
    prefixes = tuple(join(module.path, f"{name}.") for name in names)
    state = {k: v for k, v in (scope.frame.state or {}).items() if k.startswith(prefixes)}
    params = {name: scope.params[name] for name in names}
    each = (None if scope.frame.rng is None else jnp.arange(count), params, state)
    if loop == "scan":
        x, collected = jax.lax.scan(one, x, each, length=count)
    else:
        results: list[Collected] = []
        for item in _apart(each, count):
            x, result = one(x, item)
            results.append(result)
        collected = jax.tree.map(_stack, *results)
    for name in names:
        collected = _stacked(collected, join(scope.path, name))
    scope.frame.take(collected)
    return x


def _apart(stacked: Any, count: int) -> list[Any]:
    """Takes stacked arrays apart. The gradient of a split is one concatenation, that of slices a sum of padded ones."""
    leaves, tree = jax.tree.flatten(stacked)
    parts = [jax.lax.split(leaf, (1,) * count) for leaf in leaves]
    return [jax.tree.unflatten(tree, [part[i][0] for part in parts]) for i in range(count)]


def _stack(*leaves: Array) -> Array:
    return jnp.stack(leaves)


def _one_round(scope: Scope, layers: abc.Sequence[Module], args: Any, kwargs: Any) -> Any:
    outer = scope.frame

    def one(x: Any, each: Any) -> tuple[Any, Collected]:
        index, params, state = each
        rng = outer.rng
        frame = outer.inner(
            rng=None if rng is None else lambda: jax.random.fold_in(rng(), index),
            state=None if outer.state is None else dict(state),
            in_scan=True,
        )
        for layer in layers:
            inner = Scope(frame, layer, params[layer._name], join(scope.path, layer._name))
            x = run(inner, unscoped(layer, "forward"), (x, *args), kwargs)
        return x, frame.collected()

    return one


def _stacked(collected: Collected, path: str) -> Collected:
    """Marks what the layers reported as stacked: `path.x` becomes `path[:].x`."""

    def marked(values: dict[str, Any]) -> dict[str, Any]:
        return {
            f"{path}[:]{name.removeprefix(path)}" if name.startswith(f"{path}.") else name: value
            for name, value in values.items()
        }

    return dataclasses.replace(collected, summaries=marked(collected.summaries), losses=marked(collected.losses))
