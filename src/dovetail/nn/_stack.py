# SPDX-License-Identifier: Apache-2.0
"""Stacks: the body of a model."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module, repeat
from dovetail.ops import Mask, Tokens

from ._block import Block, PreNormBlock


class Stack(Module, abc.ABC):
    """The interface: all layers between embedding and head."""

    class Config(Module.Config):
        dim: int = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        """Maps `[B, T, dim]` to the same shape; the other arguments are those of `Mixer`."""


class RepeatedBlock(Stack):
    """The same block `num_layers` times, with parameters of its own each time."""

    class Config(Stack.Config):
        layer: Block.Config = PreNormBlock.Config()
        num_layers: int = REQUIRED
        loop: Literal["scan", "unroll"] = "scan"  # Compile one layer, or each of them.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.num_layers < 1:
            raise ConfigError(f"{self!r}: num_layers is {cfg.num_layers}, expected at least 1.")
        self.layer = self.child("layer", cfg.layer.set(dim=cfg.dim), stack=cfg.num_layers)

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        cfg = self.cfg
        return repeat(self, [self.layer], cfg.num_layers, cfg.loop, x, tokens=tokens, positions=positions, mask=mask)


class PatternStack(Stack):
    """Blocks that differ, over and over: five with a window, then one without, until there are `num_layers`.

    With a pattern of P blocks, the parameters of layer i are entry `i // P` of `pattern[i % P]`. Where P does not
    divide `num_layers`, the last layers are the first of the pattern once more; their parameters, not stacked, are
    `pattern[P]`, `pattern[P + 1]` and so on.
    """

    class Config(Stack.Config):
        pattern: tuple[Block.Config, ...] = REQUIRED
        num_layers: int = REQUIRED
        loop: Literal["scan", "unroll"] = "scan"  # Compile the pattern once, or each time.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        period = len(cfg.pattern)
        if not 1 <= period <= cfg.num_layers:
            raise ConfigError(
                f"{self!r}: a pattern of {period} blocks for {cfg.num_layers} layers.\n"
                "  Expected at least one block, and at least as many layers as blocks."
            )
        self._count, left = divmod(cfg.num_layers, period)
        layers = [layer.set(dim=cfg.dim) for layer in cfg.pattern]
        self.layers = [self.child(f"pattern[{i}]", layer, stack=self._count) for i, layer in enumerate(layers)]
        self.last = [self.child(f"pattern[{period + i}]", layer) for i, layer in enumerate(layers[:left])]

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        loop = self.cfg.loop
        x = repeat(self, self.layers, self._count, loop, x, tokens=tokens, positions=positions, mask=mask)
        for layer in self.last:
            x = layer(x, tokens=tokens, positions=positions, mask=mask)
        return x


class SequenceStack(Stack):
    """Stacks one after the other: three dense layers, then 58 with experts."""

    class Config(Stack.Config):
        stacks: tuple[Stack.Config, ...] = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.stacks = [self.child(f"stacks[{i}]", stack.set(dim=cfg.dim)) for i, stack in enumerate(cfg.stacks)]

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        for stack in self.stacks:
            x = stack(x, tokens=tokens, positions=positions, mask=mask)
        return x


def pattern_of(layer: Block.Config, changes: Mapping[str, Sequence[Any]]) -> tuple[Block.Config, ...]:
    """Returns copies of a block that differ at some paths: `pattern_of(block, {"mixer.window": (512, 512, None)})`."""
    lengths = {path: len(values) for path, values in changes.items()}
    if len(set(lengths.values())) != 1:
        raise ConfigError(f"pattern_of: expected as many values for each path, found {lengths}.")
    pattern = [layer] * next(iter(lengths.values()))
    for path, values in changes.items():
        pattern = [block.set_in(path, value) for block, value in zip(pattern, values, strict=True)]
    return tuple(pattern)
