# SPDX-License-Identifier: Apache-2.0
"""Experts: feed-forward layers side by side, each for rows of its own.

Shape letters: M rows, E experts, C rows of each expert.
"""

import abc
from collections.abc import Callable

import jax
from jax import Array

from dovetail.config import REQUIRED, FunctionConfig, config_for
from dovetail.module import Module
from dovetail.ops import Gated, gated

from ._linear import DenseGroupedLinear, GroupedLinear


class Experts(Module, abc.ABC):
    """The interface: maps each row by the expert that it was sent to."""

    class Config(Module.Config):
        num_experts: int = REQUIRED
        dim: int = REQUIRED
        hidden_dim: int = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array, sizes: Array | None) -> Array:
        """Maps `[M, dim]`, rows sorted by expert, or `[E, C, dim]`, to the same shape.

        Args:
            sizes: `[E]`, how many rows each expert has; None: x has a dimension for the experts.
        """


def _up(cfg: Experts.Config, to: GroupedLinear.Config) -> GroupedLinear.Config:
    shape = {"in_dim": cfg.dim, "in_axis": "embed", "out_dim": cfg.hidden_dim, "out_axis": "mlp"}
    return to.set(num_experts=cfg.num_experts, **shape)


def _down(cfg: Experts.Config, to: GroupedLinear.Config) -> GroupedLinear.Config:
    shape = {"in_dim": cfg.hidden_dim, "in_axis": "mlp", "out_dim": cfg.dim, "out_axis": "embed"}
    return to.set(num_experts=cfg.num_experts, **shape)


class DenseExperts(Experts):
    """Each expert computes `down(activation(up(x)))`."""

    class Config(Experts.Config):
        activation: Callable[[Array], Array] = jax.nn.gelu
        up: GroupedLinear.Config = DenseGroupedLinear.Config()
        down: GroupedLinear.Config = DenseGroupedLinear.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.up = self.child("up", _up(cfg, cfg.up))
        self.down = self.child("down", _down(cfg, cfg.down))

    def forward(self, x: Array, sizes: Array | None) -> Array:
        return self.down(self.tag("hidden", self.cfg.activation(self.up(x, sizes))), sizes)


class GatedExperts(Experts):
    """Each expert computes `down(activation(gate(x), up(x)))`."""

    class Config(Experts.Config):
        activation: FunctionConfig[Gated] = config_for(gated)  # As in config_for(gated, jax.nn.gelu).
        gate: GroupedLinear.Config = DenseGroupedLinear.Config()
        up: GroupedLinear.Config = DenseGroupedLinear.Config()
        down: GroupedLinear.Config = DenseGroupedLinear.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._activation: Gated = cfg.activation.build()
        self.gate = self.child("gate", _up(cfg, cfg.gate))
        self.up = self.child("up", _up(cfg, cfg.up))
        self.down = self.child("down", _down(cfg, cfg.down))

    def forward(self, x: Array, sizes: Array | None) -> Array:
        return self.down(self.tag("hidden", self._activation(self.gate(x, sizes), self.up(x, sizes))), sizes)
