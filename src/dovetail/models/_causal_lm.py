# SPDX-License-Identifier: Apache-2.0
"""Decoder language models: the next token from those before it.

Shape letters: B batch, T time, D model dim, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Loss, ModuleError, Objective
from dovetail.nn import (
    Block,
    Context,
    DenseLinear,
    Dropout,
    Embedding,
    Layer,
    Linear,
    Norm,
    PositionEmbedding,
    Repeat,
    RMSNorm,
    check_masks,
)
from dovetail.ops import (
    EMPTY,
    Causal,
    SameSegment,
    TokenLoss,
    Tokens,
    chunked_log_probs,
    chunked_token_loss,
    is_native,
)

from ._prediction import MultiTokenPrediction


class CausalLM(Objective):
    """Embeds tokens, runs a stack, and maps the result to logits.

    Where the call keeps state, `forward` goes on where the last call stopped: prefill is the first call, and each
    further call extends it by one token or more.
    """

    class Config(Objective.Config):
        values_below: ClassVar[Mapping[str, str]] = {"tokens": "vocab_size", "targets": "vocab_size"}
        vocab_size: int = REQUIRED
        dim: int = REQUIRED
        embedding: Embedding.Config = Embedding.Config()
        embedding_scale: float = 1.0  # Times the embedding: dim ** 0.5 in Gemma.
        position: PositionEmbedding.Config | None = None  # Added to the embedding.
        dropout: Dropout.Config = Dropout.Config()  # Of the embedding.
        stack: Layer.Config = Repeat.Config(layer=Block.Config())
        norm: Norm.Config = RMSNorm.Config()
        head: Linear.Config | None = DenseLinear.Config()  # None: the embedding makes the logits (tied).
        logit_scale: float = 1.0  # Times the logits, as in Cohere and Granite.
        logit_cap: float | None = None  # Logits become cap * tanh(logits / cap), as in Gemma 2.
        given: tuple[str, ...] = ()  # Further fields of a batch, which layers find in their context by name.
        predictions: tuple[MultiTokenPrediction.Config, ...] = ()  # In training: one for each token after the next.
        prediction_weight: float = 0.3  # Of the mean loss of the predictions, in the loss.
        z_loss: float = 0.0  # Weight of the squared logarithm of the normaliser of the logits, in training.
        loss_chunk: int = 2048  # Tokens whose logits are in memory at a time.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.loss_chunk < 1:
            raise ConfigError(f"{self!r}: loss_chunk is {cfg.loss_chunk}, expected at least 1.")
        if cfg.logit_cap is not None and cfg.logit_cap <= 0:
            raise ConfigError(f"{self!r}: logit_cap is {cfg.logit_cap}, expected more than 0, or none.")
        self.embedding = self.child("embedding", cfg.embedding.set(vocab_size=cfg.vocab_size, dim=cfg.dim))
        self.position = self.child("position", cfg.position.set(dim=cfg.dim)) if cfg.position else None
        self.dropout = self.child("dropout", cfg.dropout)
        self.stack = self.child("stack", cfg.stack.set(dim=cfg.dim))
        self.norm = self.child("norm", cfg.norm.set(dim=cfg.dim))
        shapes = {"in_shape": (cfg.dim,), "in_axes": ("embed",), "out_shape": (cfg.vocab_size,), "out_axes": ("vocab",)}
        self.head = self.child("head", cfg.head.set(**shapes)) if cfg.head else None
        self.predictions = [
            self.child(f"predictions[{i}]", prediction.set(dim=cfg.dim)) for i, prediction in enumerate(cfg.predictions)
        ]
        self.state("length", ("batch",), axes=("batch",), dtype=jnp.int32)
        check_masks(self, Causal() & SameSegment())

    def forward(
        self,
        ids: Array,
        *,
        positions: Array | None = None,
        segments: Array | None = None,
        lengths: Array | None = None,
        start: Array | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> Array:
        """Maps token ids `[B, T]` to logits `[B, T, V]`.

        Args:
            positions: `[B, T]`, counted from the start of each document; by default the place in the row.
            segments: `[B, T]`, the document of each token where rows are packed, 0 for padding.
            lengths: `[B]`, with state: how many tokens of each row are real; the rest is padding at the end.
            start: `[B]`, with state: the place of the first token; by default, the one after the call before.
            given: what layers find in their context by name, such as a memory to attend to, or a condition.
        """
        return self._logits(self._hidden(ids, self._context(ids, positions, segments, lengths, given, start)))

    def last_logits(
        self,
        ids: Array,
        *,
        positions: Array | None = None,
        segments: Array | None = None,
        lengths: Array | None = None,
        start: Array | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> Array:
        """Returns the logits `[B, V]` after the last real token of each row, and makes no others; see `forward`."""
        hidden = self._hidden(ids, self._context(ids, positions, segments, lengths, given, start))
        if lengths is None:
            return self._logits(hidden[:, -1])
        return self._logits(jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0])

    def hidden(
        self,
        ids: Array,
        *,
        lengths: Array | None = None,
        start: Array | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> Array:
        """Returns what the logits are made of, `[B, T, D]`, for `head_logits`; see `forward`."""
        return self._hidden(ids, self._context(ids, None, None, lengths, given, start))

    def head_logits(self, hidden: Array) -> Array:
        """Maps what `hidden` returns, or a part of it, `[..., D]`, to logits `[..., V]`."""
        return self._logits(hidden)

    def predict(
        self,
        ids: Array,
        hidden: Array,
        before: Array,
        *,
        lengths: Array | None = None,
        start: Array | None = None,
    ) -> Array:
        """Returns what `predictions` make of each token, `[B, T, P, D]` for P of them, for `head_logits`.

        After a token, `hidden` says the next one, and the first prediction the one after that, if it is given the next
        one; the second says the one behind, and so on. So what they say of a token has that token in it.

        Args:
            hidden: `[B, T, D]`, as `hidden` returns it for these tokens.
            before: `[B, P, D]`, what `hidden` and all predictions but the last made of the token before the first.
            lengths: with state, as in `forward`; so is `start`.
        """
        index, embedded, found = self._index(ids, lengths, start), self._embedded(ids), list[Array]()
        for i, prediction in enumerate(self.predictions):
            earlier = jnp.concatenate([before[:, i : i + 1], hidden[:, :-1]], axis=1)
            tokens = Tokens(index, (index > i).astype(jnp.int32))  # The first ones have too few before them.
            hidden = prediction(earlier, embedded, Context(tokens, index, Causal() & SameSegment(), ids))
            found.append(hidden)
        return jnp.stack(found, axis=2)

    def num_predictions(self) -> int:
        """Returns P, how many tokens after the next the model predicts."""
        return len(self.predictions)

    def logits_of(self, x: Array) -> Array:
        """Maps what any layer of the stack makes, `[B, T, D]`, to the logits that it would have if it were the last."""
        return self._logits(self.norm(x))

    def max_length(self) -> int | None:
        """Returns how many tokens a row can have at most; None: any number."""
        return None if self.position is None else self.position.max_length()

    def loss(self, batch: Mapping[str, Array]) -> Loss:
        """Returns the cross-entropy of all tokens, a chunk of logits in memory at a time; metric: `accuracy`.

        The z-loss and the losses of `predictions`, where there are any, leave the call as auxiliary losses.

        Args:
            batch: `tokens`, `targets` and `weights`, all `[B, T]`; `positions` and `segments` as in `forward`.
        """
        ids, targets, weights = batch["tokens"], batch["targets"], batch["weights"]
        segments = batch.get("segments")
        if ids.ndim != 2:
            raise ConfigError(
                f"{self!r}: the tokens of a batch are {list(ids.shape)}, expected [B, T].\n"
                "  Rows that are groups are for an objective that compares their sequences, as examples/dpo.py does."
            )
        context = self._context(ids, batch.get("positions"), segments, None, self._given(batch))
        hidden = self._hidden(ids, context)
        context = context.later(self.published)
        found = self._token_loss(hidden, targets, weights)
        z_loss = found.z_loss
        # By the weight of all tokens, so that the batch may be split: the trainer multiplies by it again.
        divisor = jnp.where(found.weight == 0, 1.0, found.weight)
        for i, prediction in enumerate(self.predictions):
            ahead = i + 1
            hidden = prediction(hidden, self._embedded(jnp.roll(ids, -ahead, axis=1)), context)
            counted = jnp.roll(weights, -ahead, axis=1) * _together(ids, segments, ahead).astype(weights.dtype)
            sums = self._token_loss(hidden, jnp.roll(targets, -ahead, axis=1), counted)
            share = self.cfg.prediction_weight / len(self.predictions)
            self.add_loss(f"predictions[{i}]", share * sums.loss / divisor)
            z_loss += share * sums.z_loss
        if self.cfg.z_loss:
            self.add_loss("z_loss", z_loss / divisor)
        return Loss(found.loss, found.weight, {"accuracy": (found.correct, found.weight)})

    def log_probs(self, batch: Mapping[str, Array]) -> Array:
        """Returns the logarithm of the probability of each target, `[B, T]` in float32; 0 where its weight is 0.

        Logits of a chunk are in memory at a time, as in `loss`. The batch is that of `loss`; without `weights`, all
        targets count.
        """
        ids, targets, axes = batch["tokens"], batch["targets"], ("batch", "seq")
        weights = batch.get("weights", jnp.ones(targets.shape, jnp.float32))
        context = self._context(ids, batch.get("positions"), batch.get("segments"), None, self._given(batch))
        hidden = self._hidden(ids, context)
        return self.on_shards(
            self._own_log_probs,
            self.constrain(hidden, *axes, None),
            targets,
            weights,
            in_axes=((*axes, None), axes, axes),
            out_axes=axes,
        )

    def _given(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        return {name: batch[name] for name in self.cfg.given}

    def _own_log_probs(self, hidden: Array, targets: Array, weights: Array) -> Array:
        """Returns those of the tokens of this device."""
        flat = (hidden.reshape(-1, hidden.shape[-1]), self._logits, targets.reshape(-1), weights.reshape(-1))
        return chunked_log_probs(*flat, chunk=self.cfg.loss_chunk).reshape(targets.shape)

    def _token_loss(self, hidden: Array, targets: Array, weights: Array) -> TokenLoss:
        axes = ("batch", "seq")
        hidden = self.constrain(hidden, *axes, None)
        return self.on_shards(
            self._own_loss, hidden, targets, weights, in_axes=((*axes, None), axes, axes), out_axes=None
        )

    def _own_loss(self, hidden: Array, targets: Array, weights: Array) -> TokenLoss:
        """Returns the sums over the tokens of this device."""
        return chunked_token_loss(
            hidden.reshape(-1, hidden.shape[-1]),
            self._logits,
            targets.reshape(-1),
            weights.reshape(-1),
            chunk=self.cfg.loss_chunk,
            z_loss=self.cfg.z_loss,
        )

    def _logits(self, hidden: Array) -> Array:
        scale, cap = self.cfg.logit_scale, self.cfg.logit_cap
        logits = self.embedding.logits(hidden) if self.head is None else self.head(hidden)
        logits = logits if scale == 1.0 else logits * scale
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def _embedded(self, ids: Array) -> Array:
        scale = self.cfg.embedding_scale
        return self.embedding(ids) if scale == 1.0 else self.embedding(ids) * scale

    def _hidden(self, ids: Array, context: Context) -> Array:
        x = self._embedded(ids)
        if self.position is not None:
            x = x + self.position(context.positions)
        if self.stateful and is_native(x):  # Whose products leave out rows of zeros, here those of padding.
            x = jnp.where((context.tokens.index == EMPTY)[..., None], 0.0, x)
        x = self.constrain(self.dropout(x), "batch", "stream", None)
        return self.norm(self.stack(x, context), context)

    def _context(
        self,
        ids: Array,
        positions: Array | None,
        segments: Array | None,
        lengths: Array | None,
        given: Mapping[str, Any] | None = None,
        start: Array | None = None,
    ) -> Context:
        """Returns what all layers are told besides `x`."""
        index = self._index(ids, lengths, start)
        mask = Causal() if segments is None else Causal() & SameSegment()
        return Context(Tokens(index, segments), index if positions is None else positions, mask, ids, given or {})

    def _index(self, ids: Array, lengths: Array | None, start: Array | None) -> Array:
        """Returns the place of each token, `[B or 1, T]`; with state, after those of the calls before."""
        batch, time = ids.shape
        steps = jnp.arange(time, dtype=jnp.int32)[None]
        if not self.stateful:
            if lengths is not None or start is not None:
                raise ModuleError(
                    f"{self!r}: lengths and start go with decode state. Without it, mark padding by segments of 0."
                )
            return steps
        count = jnp.full((batch,), time, jnp.int32) if lengths is None else lengths.astype(jnp.int32)
        first: Array = self.length if start is None else start
        if start is None:  # Who says where a call starts, need not keep it.
            self.update("length", first + count)
        return jnp.where(steps < count[:, None], first[:, None] + steps, EMPTY)


def _together(ids: Array, segments: Array | None, ahead: int) -> Array:
    """Returns `[B or 1, T]`: whether the token so far ahead is in the row, and of the same document."""
    inside = jnp.arange(ids.shape[1])[None] < ids.shape[1] - ahead
    return inside if segments is None else inside & (jnp.roll(segments, -ahead, axis=1) == segments)
