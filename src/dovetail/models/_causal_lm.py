# SPDX-License-Identifier: Apache-2.0
"""Decoder language models: the next token from those before it.

Shape letters: B batch, T time, D model dim, V vocabulary.
"""

import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module, ModuleError
from dovetail.nn import (
    DenseLinear,
    Dropout,
    Embedding,
    Linear,
    Norm,
    PositionEmbedding,
    RepeatedBlock,
    RMSNorm,
    Stack,
)
from dovetail.ops import EMPTY, Causal, SameSegment, TokenLoss, Tokens, chunked_token_loss


class CausalLM(Module):
    """Embeds tokens, runs a stack, and maps the result to logits.

    Where the call keeps state, `forward` goes on where the last call stopped: prefill is the first call, and each
    further call extends it by one token or more.
    """

    class Config(Module.Config):
        vocab_size: int = REQUIRED
        dim: int = REQUIRED
        embedding: Embedding.Config = Embedding.Config()
        position: PositionEmbedding.Config | None = None  # Added to the embedding.
        dropout: Dropout.Config = Dropout.Config()  # Of the embedding.
        stack: Stack.Config = RepeatedBlock.Config()
        norm: Norm.Config = RMSNorm.Config()
        head: Linear.Config | None = DenseLinear.Config()  # None: the embedding makes the logits (tied).
        z_loss: float = 0.0
        loss_chunk: int = 2048  # Tokens whose logits are in memory at a time.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.loss_chunk < 1:
            raise ConfigError(f"{self!r}: loss_chunk is {cfg.loss_chunk}, expected at least 1.")
        self.embedding = self.child("embedding", cfg.embedding.set(vocab_size=cfg.vocab_size, dim=cfg.dim))
        self.position = self.child("position", cfg.position.set(dim=cfg.dim)) if cfg.position else None
        self.dropout = self.child("dropout", cfg.dropout)
        self.stack = self.child("stack", cfg.stack.set(dim=cfg.dim))
        self.norm = self.child("norm", cfg.norm.set(dim=cfg.dim))
        shapes = {"in_shape": (cfg.dim,), "in_axes": ("embed",), "out_shape": (cfg.vocab_size,), "out_axes": ("vocab",)}
        self.head = self.child("head", cfg.head.set(**shapes)) if cfg.head else None
        self.state_var("length")

    def forward(
        self, ids: Array, *, positions: Array | None = None, segments: Array | None = None, lengths: Array | None = None
    ) -> Array:
        """Maps token ids `[B, T]` to logits `[B, T, V]`.

        Args:
            positions: `[B, T]`, counted from the start of each document; by default the place in the row.
            segments: `[B, T]`, the document of each token where rows are packed, 0 for padding.
            lengths: `[B]`, with state: how many tokens of each row are real; the rest is padding at the end.
        """
        return self._logits(self._hidden(ids, positions, segments, lengths))

    def loss(
        self,
        ids: Array,
        targets: Array,
        weights: Array,
        *,
        positions: Array | None = None,
        segments: Array | None = None,
    ) -> TokenLoss:
        """Returns the sums of loss, weight and hits over all tokens; logits are made a chunk of tokens at a time."""
        hidden = self._hidden(ids, positions, segments, None)
        flat = hidden.reshape(-1, hidden.shape[-1])
        return chunked_token_loss(
            flat,
            self._logits,
            targets.reshape(-1),
            weights.reshape(-1),
            chunk=self.cfg.loss_chunk,
            z_loss=self.cfg.z_loss,
        )

    def _logits(self, hidden: Array) -> Array:
        return self.embedding.attend(hidden) if self.head is None else self.head(hidden)

    def _hidden(self, ids: Array, positions: Array | None, segments: Array | None, lengths: Array | None) -> Array:
        index = self._index(ids, lengths)
        positions = index if positions is None else positions
        x = self.embedding(ids)
        if self.position is not None:
            x = x + self.position(positions)
        x = self.dropout(x)
        mask = Causal() if segments is None else Causal() & SameSegment()
        x = self.stack(x, tokens=Tokens(index, segments), positions=positions, mask=mask)
        return self.norm(x)

    def _index(self, ids: Array, lengths: Array | None) -> Array:
        """Returns the place of each token, `[B or 1, T]`; with state, after those of the calls before."""
        batch, time = ids.shape
        step = jnp.arange(time, dtype=jnp.int32)[None]
        if not self.stateful:
            if lengths is not None:
                raise ModuleError(f"{self!r}: lengths go with decode state. Without it, mark padding by segments of 0.")
            return step
        start = self.length if self.has_state("length") else jnp.zeros((batch,), jnp.int32)
        count = jnp.full((batch,), time, jnp.int32) if lengths is None else lengths.astype(jnp.int32)
        self.update("length", start + count)
        return jnp.where(step < count[:, None], start[:, None] + step, EMPTY)
