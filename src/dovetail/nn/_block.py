# SPDX-License-Identifier: Apache-2.0
"""Blocks: the layers that a model repeats. They differ in where the norms are and in what is added to what."""

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
        added_scale: float = 1.0  # Times what is added, as in Granite.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.mixer_norm = self.child("mixer_norm", cfg.mixer_norm.set(dim=cfg.dim))
        self.mixer = self.child("mixer", cfg.mixer.set(dim=cfg.dim))
        self.ffn_norm = self.child("ffn_norm", cfg.ffn_norm.set(dim=cfg.dim))
        self.ffn = self.child("ffn", cfg.ffn.set(dim=cfg.dim))
        self.dropout = self.child("dropout", cfg.dropout)

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        mixed = self.mixer(self.mixer_norm(x), tokens=tokens, positions=positions, mask=mask)
        x = x + self._scaled(self.dropout(mixed))
        return x + self._scaled(self.dropout(self.ffn(self.ffn_norm(x))))

    def _scaled(self, added: Array) -> Array:
        return added if self.cfg.added_scale == 1.0 else added * self.cfg.added_scale


class PostNormBlock(Block):
    """Adds `norm(mixer(x))`, then `norm(ffn(x))`, to `x`, as in OLMo 2 (arXiv:2501.00656, section 2)."""

    class Config(Block.Config):
        mixer: Mixer.Config = Attention.Config()
        mixer_norm: Norm.Config = RMSNorm.Config()
        ffn: FeedForward.Config = GatedFeedForward.Config()
        ffn_norm: Norm.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()  # Of what is added.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.mixer = self.child("mixer", cfg.mixer.set(dim=cfg.dim))
        self.mixer_norm = self.child("mixer_norm", cfg.mixer_norm.set(dim=cfg.dim))
        self.ffn = self.child("ffn", cfg.ffn.set(dim=cfg.dim))
        self.ffn_norm = self.child("ffn_norm", cfg.ffn_norm.set(dim=cfg.dim))
        self.dropout = self.child("dropout", cfg.dropout)

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        mixed = self.mixer(x, tokens=tokens, positions=positions, mask=mask)
        x = x + self.dropout(self.mixer_norm(mixed))
        return x + self.dropout(self.ffn_norm(self.ffn(x)))


class SandwichBlock(Block):
    """Adds `out_norm(mixer(norm(x)))`, then the same of the feed-forward, to `x`, as in Gemma 2 (arXiv:2408.00118)."""

    class Config(Block.Config):
        mixer_norm: Norm.Config = RMSNorm.Config()
        mixer: Mixer.Config = Attention.Config()
        mixer_out_norm: Norm.Config = RMSNorm.Config()
        ffn_norm: Norm.Config = RMSNorm.Config()
        ffn: FeedForward.Config = GatedFeedForward.Config()
        ffn_out_norm: Norm.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()  # Of what is added.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.mixer_norm = self.child("mixer_norm", cfg.mixer_norm.set(dim=cfg.dim))
        self.mixer = self.child("mixer", cfg.mixer.set(dim=cfg.dim))
        self.mixer_out_norm = self.child("mixer_out_norm", cfg.mixer_out_norm.set(dim=cfg.dim))
        self.ffn_norm = self.child("ffn_norm", cfg.ffn_norm.set(dim=cfg.dim))
        self.ffn = self.child("ffn", cfg.ffn.set(dim=cfg.dim))
        self.ffn_out_norm = self.child("ffn_out_norm", cfg.ffn_out_norm.set(dim=cfg.dim))
        self.dropout = self.child("dropout", cfg.dropout)

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        mixed = self.mixer(self.mixer_norm(x), tokens=tokens, positions=positions, mask=mask)
        x = x + self.dropout(self.mixer_out_norm(mixed))
        return x + self.dropout(self.ffn_out_norm(self.ffn(self.ffn_norm(x))))


class ParallelBlock(Block):
    """Adds `mixer(norm(x))` and `ffn(norm(x))` to the same `x`, so that neither waits for the other.

    One norm for both as in PaLM and Cohere, or, with `ffn_norm`, one for each as in GPT-NeoX.
    """

    class Config(Block.Config):
        norm: Norm.Config = RMSNorm.Config()
        mixer: Mixer.Config = Attention.Config()
        ffn_norm: Norm.Config | None = None  # None: `norm`.
        ffn: FeedForward.Config = GatedFeedForward.Config()
        dropout: Dropout.Config = Dropout.Config()  # Of what is added.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.norm = self.child("norm", cfg.norm.set(dim=cfg.dim))
        self.mixer = self.child("mixer", cfg.mixer.set(dim=cfg.dim))
        self.ffn_norm = self.child("ffn_norm", cfg.ffn_norm.set(dim=cfg.dim)) if cfg.ffn_norm else None
        self.ffn = self.child("ffn", cfg.ffn.set(dim=cfg.dim))
        self.dropout = self.child("dropout", cfg.dropout)

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        y = self.norm(x)
        mixed = self.mixer(y, tokens=tokens, positions=positions, mask=mask)
        y = y if self.ffn_norm is None else self.ffn_norm(x)
        return x + self.dropout(mixed) + self.dropout(self.ffn(y))


class MixerBlock(Block):
    """Adds `mixer(norm(x))` to `x`, without a feed-forward: a Mamba layer."""

    class Config(Block.Config):
        norm: Norm.Config = RMSNorm.Config()
        mixer: Mixer.Config = Attention.Config()
        dropout: Dropout.Config = Dropout.Config()  # Of what is added.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.norm = self.child("norm", cfg.norm.set(dim=cfg.dim))
        self.mixer = self.child("mixer", cfg.mixer.set(dim=cfg.dim))
        self.dropout = self.child("dropout", cfg.dropout)

    def forward(self, x: Array, *, tokens: Tokens, positions: Array, mask: Mask) -> Array:
        return x + self.dropout(self.mixer(self.norm(x), tokens=tokens, positions=positions, mask=mask))
