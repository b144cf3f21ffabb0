# SPDX-License-Identifier: Apache-2.0
"""Positions that act on queries and keys."""

import abc

from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module
from dovetail.ops import rotary_frequencies, rotate


class Rotary(Module, abc.ABC):
    """The interface: changes queries and keys by their positions, so that scores depend on their distance."""

    class Config(Module.Config):
        head_dim: int = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array, positions: Array) -> Array:
        """Maps `[B, T, H, head_dim]` and positions `[B or 1, T]` to the shape and dtype of `x`."""


class RoPE(Rotary):
    """Rotary position embedding."""

    class Config(Rotary.Config):
        theta: float = 10_000.0

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.head_dim % 2:
            raise ConfigError(f"{self!r}: head_dim is {cfg.head_dim}, expected an even number.")

    def forward(self, x: Array, positions: Array) -> Array:
        return rotate(x, positions, rotary_frequencies(self.cfg.head_dim, self.cfg.theta))


class NoRotary(Rotary):
    """Leaves queries and keys as they are."""

    def forward(self, x: Array, positions: Array) -> Array:
        return x
