# SPDX-License-Identifier: Apache-2.0
"""Stacks: the body of a model."""

import abc
from typing import Literal

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
        return repeat(self, self.layer, cfg.num_layers, cfg.loop, x, tokens=tokens, positions=positions, mask=mask)
