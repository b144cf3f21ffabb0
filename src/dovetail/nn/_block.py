# SPDX-License-Identifier: Apache-2.0
"""Blocks: the layers that a model repeats."""

import abc

from jax import Array

from dovetail.config import REQUIRED
from dovetail.module import Module
from dovetail.ops import Mask, Tokens

from ._attention import Attention, Mixer
from ._dropout import Dropout
from ._feed_forward import FeedForward, GatedFeedForward
from ._norm import Norm, RMSNorm


class Block(Module, abc.ABC):
    """The interface: one layer of a stack."""

    class Config(Module.Config):
        dim: int = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        """Maps `[B, T, dim]` to the same shape; the other arguments are those of `Mixer`."""


class PreNormBlock(Block):
    """Adds `mixer(norm(x))`, then `ffn(norm(x))`, to `x`."""

    class Config(Block.Config):
        mixer_norm: Norm.Config = RMSNorm.Config()
        mixer: Mixer.Config = Attention.Config()
        ffn_norm: Norm.Config = RMSNorm.Config()
        ffn: FeedForward.Config = GatedFeedForward.Config()
        dropout: Dropout.Config = Dropout.Config()  # Of what is added.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.mixer_norm = self.child("mixer_norm", cfg.mixer_norm.set(dim=cfg.dim))
        self.mixer = self.child("mixer", cfg.mixer.set(dim=cfg.dim))
        self.ffn_norm = self.child("ffn_norm", cfg.ffn_norm.set(dim=cfg.dim))
        self.ffn = self.child("ffn", cfg.ffn.set(dim=cfg.dim))
        self.dropout = self.child("dropout", cfg.dropout)

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        mixed = self.mixer(self.mixer_norm(x), tokens=tokens, positions=positions, mask=mask)
        x = x + self.dropout(mixed)
        return x + self.dropout(self.ffn(self.ffn_norm(x)))
