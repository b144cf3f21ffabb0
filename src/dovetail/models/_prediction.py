# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction: in training, a model also predicts tokens further ahead than the next."""

import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED
from dovetail.module import Module
from dovetail.nn import Block, Context, DenseLinear, Layer, Linear, Norm, RMSNorm


class MultiTokenPrediction(Module):
    """Goes one token further ahead: from what predicts a token, and that token's embedding, to what predicts the next.

    Reference: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024 (arXiv:2412.19437), section 2.2.
    """

    class Config(Module.Config):
        dim: int = REQUIRED
        embedding_norm: Norm.Config = RMSNorm.Config()
        hidden_norm: Norm.Config = RMSNorm.Config()
        merge: Linear.Config = DenseLinear.Config()  # From the embedding and what was there, in this order.
        block: Layer.Config = Block.Config()
        norm: Norm.Config = RMSNorm.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.embedding_norm = self.child("embedding_norm", cfg.embedding_norm.set(dim=cfg.dim))
        self.hidden_norm = self.child("hidden_norm", cfg.hidden_norm.set(dim=cfg.dim))
        shapes = {"in_shape": (2, cfg.dim), "in_axes": (None, "embed"), "out_shape": (cfg.dim,), "out_axes": ("embed",)}
        self.merge = self.child("merge", cfg.merge.set(**shapes))
        self.block = self.child("block", cfg.block.set(dim=cfg.dim))
        self.norm = self.child("norm", cfg.norm.set(dim=cfg.dim))

    def forward(self, hidden: Array, embedded: Array, context: Context) -> Array:
        """Maps `[B, T, dim]`, twice, to the same shape."""
        both = jnp.stack([self.embedding_norm(embedded, context), self.hidden_norm(hidden, context)], axis=-2)
        return self.norm(self.block(self.merge(both), context), context)
