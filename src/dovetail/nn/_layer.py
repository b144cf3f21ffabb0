# SPDX-License-Identifier: Apache-2.0
"""Layers, and layers made of layers: `Repeat`, the same many times, and `Sequence`, one after the other.

Shape letters: B batch, T time, D model dim.
"""

import abc
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Loop, Module, repeat

from ._context import Context


class Layer(Module, abc.ABC):
    """The interface of what a model is made of: mixers, feed-forwards, blocks, and stacks of them."""

    class Config(Module.Config):
        dim: int = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array, context: Context) -> Array:
        """Maps `[B, T, D]` to the same shape."""


class Repeat(Layer):
    """The same layer `num_layers` times, each with parameters and state of its own; or a pattern of layers, in turn.

    The parameters are stacked along a new first dimension, the logical axis "layers"; a layer is compiled once. With
    a pattern of P layers, those of layer i are entry `i // P` of `layer[i % P]`. Where P does not divide `num_layers`,
    the last layers are the first of the pattern once more; their parameters, not stacked, are `layer[P]`,
    `layer[P + 1]` and so on.
    """

    class Config(Layer.Config):
        renamed: ClassVar[Mapping[str, str]] = {"pattern": "layer"}
        layer: Layer.Config | tuple[Layer.Config, ...] = REQUIRED
        num_layers: int = REQUIRED
        loop: Loop = "scan"  # Compile the layer once, or each time it runs.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        pattern, name = _pattern(cfg.layer)
        if not 1 <= len(pattern) <= cfg.num_layers:
            raise ConfigError(
                f"{self!r}: num_layers is {cfg.num_layers}, for {len(pattern)} layers in turn.\n"
                "  Expected at least one layer, and a number of at least as many."
            )
        self._count, left = divmod(cfg.num_layers, len(pattern))

        def child(i: int, stack: int) -> Layer:
            return self.child(name.format(i), pattern[i % len(pattern)].set(dim=cfg.dim), stack=stack)

        self.layers = [child(i, self._count) for i in range(len(pattern))]
        self.last = [child(len(pattern) + i, 0) for i in range(left)]

    def forward(self, x: Array, context: Context) -> Array:
        x = repeat(self, self.layers, self._count, self.cfg.loop, x, context)
        for layer in self.last:
            x = layer(x, context.later(self.published))
        return x


def _pattern(layer: Layer.Config | tuple[Layer.Config, ...]) -> tuple[tuple[Layer.Config, ...], str]:
    """Returns the layers in turn, and how they are called."""
    return (layer, "layer[{}]") if isinstance(layer, tuple) else ((layer,), "layer")


class Sequence(Layer):
    """Layers one after the other: three dense ones, then 58 with experts."""

    class Config(Layer.Config):
        renamed: ClassVar[Mapping[str, str]] = {"stacks": "layers"}
        layers: tuple[Layer.Config, ...] = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.layers = [self.child(f"layers[{i}]", layer.set(dim=cfg.dim)) for i, layer in enumerate(cfg.layers)]

    def forward(self, x: Array, context: Context) -> Array:
        for layer in self.layers:
            x = layer(x, context.later(self.published))
        return x


class Place(NamedTuple):
    """A layer of a stack: where its parameters are, and what it is."""

    path: str
    entry: tuple[int, ...]  # Of it along the stacked dimensions, one for each `Repeat` around it.
    layer: Layer.Config


def layers_of(stack: Layer.Config, path: str = "stack") -> list[Place]:
    """Returns the layers of a stack in the order in which they run; `path` is that of the stack."""

    def inside(layer: Layer.Config, at: str, entry: tuple[int, ...]) -> list[Place]:
        return [Place(place.path, (*entry, *place.entry), place.layer) for place in layers_of(layer, at)]

    if isinstance(stack, Sequence.Config):
        return [each for i, layer in enumerate(stack.layers) for each in inside(layer, f"{path}.layers[{i}]", ())]
    if not isinstance(stack, Repeat.Config):
        return [Place(path, (), stack)]
    found, (pattern, name) = list[Place](), _pattern(stack.layer)
    for i in range(stack.num_layers):
        turn, at = divmod(i, len(pattern))
        last = turn == stack.num_layers // len(pattern)  # What is left over when the pattern does not divide.
        number = len(pattern) + at if last else at
        found += inside(pattern[at], f"{path}.{name.format(number)}", () if last else (turn,))
    return found


def stack_of(layers: Ordered[Layer.Config]) -> Layer.Config:
    """Returns a stack of these layers that has as few to compile as `Repeat` and `Sequence` allow."""
    count, kinds = len(layers), dict[Layer.Config, int]()
    numbers = [kinds.setdefault(layer, len(kinds)) for layer in layers]  # Equal where layers are, and fast to compare.
    period = next(p for p in range(1, count + 1) if numbers[p:] == numbers[:-p])
    runs = [(layer, len(list(run))) for layer, run in groupby(layers)]
    if len(runs) < period + count % period:
        return Sequence.Config(layers=tuple(Repeat.Config(layer=layer, num_layers=n) for layer, n in runs))
    return Repeat.Config(layer=layers[0] if period == 1 else tuple(layers[:period]), num_layers=count)


def pattern_of(layer: Layer.Config, changes: Mapping[str, Ordered[Any]]) -> tuple[Layer.Config, ...]:
    """Returns copies of a layer that differ at some paths: `pattern_of(block, {"mixer.window": (512, 512, None)})`."""
    lengths = {path: len(values) for path, values in changes.items()}
    if len(set(lengths.values())) != 1:
        raise ConfigError(f"pattern_of: expected as many values for each path, found {lengths}.")
    pattern = [layer] * next(iter(lengths.values()))
    for path, values in changes.items():
        pattern = [each.set_in(path, value) for each, value in zip(pattern, values, strict=True)]
    return tuple(pattern)
