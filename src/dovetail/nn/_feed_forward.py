# SPDX-License-Identifier: Apache-2.0
"""Feed-forward layers: the position-wise half of a transformer block.

`FeedForward` is the interface a block depends on; `DenseFeedForward` and `GatedFeedForward` fill it. Whether there is a
gate is a matter of the activation: one that takes a gate is the config of a function of two arrays.
"""

import abc
from collections.abc import Callable

import jax
from jax import Array

from dovetail.config import REQUIRED, FunctionConfig, config_for
from dovetail.ops import Gated, gated

from ._context import Context
from ._layer import Layer
from ._linear import DenseLinear, Linear


class FeedForward(Layer, abc.ABC):
    """The interface: maps each position on its own."""

    @abc.abstractmethod
    def forward(self, x: Array, context: Context | None = None) -> Array:
        """Maps `[B, T, dim]` to the same shape."""


def _up(to: Linear.Config, dim: int, hidden_dim: int) -> Linear.Config:
    return to.set(in_shape=(dim,), in_axes=("embed",), out_shape=(hidden_dim,), out_axes=("mlp",))


def _down(to: Linear.Config, dim: int, hidden_dim: int) -> Linear.Config:
    return to.set(in_shape=(hidden_dim,), in_axes=("mlp",), out_shape=(dim,), out_axes=("embed",))


class DenseFeedForward(FeedForward):
    """Computes `down(activation(up(x)))`."""

    class Config(FeedForward.Config):
        hidden_dim: int = REQUIRED
        activation: Callable[[Array], Array] = jax.nn.gelu
        up: Linear.Config = DenseLinear.Config()
        down: Linear.Config = DenseLinear.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.up = self.child("up", _up(cfg.up, cfg.dim, cfg.hidden_dim))
        self.down = self.child("down", _down(cfg.down, cfg.dim, cfg.hidden_dim))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        x = self.constrain(x, "batch", "seq", None)
        hidden = self.constrain(self.cfg.activation(self.up(x)), "batch", "seq", "mlp")
        return self.constrain(self.down(self.tag("hidden", hidden)), "batch", "stream", None)


class GatedFeedForward(FeedForward):
    """Computes `down(activation(gate(x), up(x)))`, which by default is `down(silu(gate(x)) * up(x))`.

    Reference: Shazeer, GLU Variants Improve Transformer, 2020 (arXiv:2002.05202).
    """

    class Config(FeedForward.Config):
        hidden_dim: int = REQUIRED
        activation: FunctionConfig[Gated] = config_for(gated)  # As in config_for(gated, jax.nn.gelu).
        gate: Linear.Config = DenseLinear.Config()
        up: Linear.Config = DenseLinear.Config()
        down: Linear.Config = DenseLinear.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._activation: Gated = cfg.activation.build()
        self.gate = self.child("gate", _up(cfg.gate, cfg.dim, cfg.hidden_dim))
        self.up = self.child("up", _up(cfg.up, cfg.dim, cfg.hidden_dim))
        self.down = self.child("down", _down(cfg.down, cfg.dim, cfg.hidden_dim))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        x = self.constrain(x, "batch", "seq", None)
        hidden = self.constrain(self._activation(self.gate(x), self.up(x)), "batch", "seq", "mlp")
        return self.constrain(self.down(self.tag("hidden", hidden)), "batch", "stream", None)
