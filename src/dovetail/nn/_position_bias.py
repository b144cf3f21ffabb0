# SPDX-License-Identifier: Apache-2.0
"""Positions that act on attention scores."""

import abc

import jax.numpy as jnp

from dovetail.config import REQUIRED
from dovetail.module import Module
from dovetail.ops import LinearBias, ScoreBias, alibi_slopes


class PositionBias(Module, abc.ABC):
    """The interface: what is added to the scores of each head, by the distance of query and key."""

    class Config(Module.Config):
        num_heads: int = REQUIRED

    @abc.abstractmethod
    def forward(self) -> ScoreBias:
        """Returns the bias of `num_heads` heads."""


class ALiBi(PositionBias):
    """Attention with linear biases: scores fall with the distance, in each head by a fixed slope of its own."""

    def forward(self) -> ScoreBias:
        return LinearBias(jnp.asarray(alibi_slopes(self.cfg.num_heads), jnp.float32))
