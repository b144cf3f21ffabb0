# SPDX-License-Identifier: Apache-2.0
"""Programs from what the layers have made to tokens, log-probabilities and embeddings, as pure functions.

Shape letters: R rows, T time, D model dim, V vocabulary, S slots.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.module import Module, call

from . import _draw as drawing
from ._device import DeviceShape
from ._draw import Counts, Drawing, DrawParams, Verified


class DrawPrograms(NamedTuple):
    """Those that need the head of a model."""

    model: Module  # Has a method `head_logits`, as `CausalLM` does.
    options: Mapping[str, Any]  # Of a call.
    alternatives: int  # To each token, that are reported.

    def greedy(self, params: Any, hidden: Array, last: Array, slots: Array, draws: Array) -> tuple[Array, Array]:
        """Returns the most likely tokens `[R]`, and those drawn last by slot."""
        tokens = drawing.greedy(self._logits(params, hidden))
        return tokens, _remembered(last, slots, draws, tokens)

    def draw(
        self, params: Any, hidden: Array, last: Array, counts: Counts, slots: Array, draws: Array, how: DrawParams
    ) -> tuple[Drawing, Array, Counts]:
        """Draws a token for each row."""
        drawn = drawing.draw(self._logits(params, hidden), how, counts, slots, alternatives=self.alternatives)
        counted = drawing.add_tokens(counts, jnp.where(draws, slots, -1), drawn.tokens)
        return drawn, _remembered(last, slots, draws, drawn.tokens), counted

    def verify_greedy(
        self, params: Any, hidden: Array, last: Array, slots: Array, draws: Array, ids: Array, count: Array
    ) -> tuple[Array, Array]:
        """Returns those guesses that are the most likely tokens, and one more, `[R, T]`."""
        tokens = drawing.verify_greedy(self._logits(params, hidden), ids[:, 1:], jnp.maximum(count - 1, 0))
        return tokens, _remembered(last, slots, draws, _last_of(tokens))

    def verify(
        self,
        params: Any,
        hidden: Array,
        last: Array,
        counts: Counts,
        slots: Array,
        draws: Array,
        ids: Array,
        count: Array,
        how: DrawParams,
    ) -> tuple[Verified, Array, Counts]:
        """Draws a token for each row, or several of its guesses."""
        assert how.mask is not None
        # It is of the first place. Rows of a grammar have no guesses, so what they have at other places is not used.
        masks = jnp.repeat(how.mask[:, None], ids.shape[1], axis=1)
        found = drawing.verify(
            self._logits(params, hidden),
            ids[:, 1:],
            jnp.maximum(count - 1, 0),
            how._replace(mask=None),
            counts,
            slots,
            masks=masks,
            alternatives=self.alternatives,
        )
        counted = drawing.add_tokens(counts, jnp.where(draws, slots, -1), found.tokens)
        return found, _remembered(last, slots, draws, _last_of(found.tokens)), counted

    def score(self, params: Any, hidden: Array, targets: Array) -> tuple[Array, Array, Array]:
        """Returns the log-probabilities of the tokens after those of the only row."""
        return drawing.score(self._logits(params, hidden[0]), targets[0], self.alternatives)

    def _logits(self, params: Any, hidden: Array) -> Array:
        return call(self.model, params, hidden, method="head_logits", **self.options)[0]


def pooled(hidden: Array, weights: Array) -> Array:
    """Returns the sum `[D]`, in float32, of what the layers have made of the tokens of the only row, by weight."""
    return jnp.einsum("rtd,rt->d", hidden.astype(jnp.float32), weights, precision="highest")


def joined(first: Array, more: tuple[Array, ...]) -> Array:
    """Returns tokens `[R]` with those after them, `[R, T]`."""
    return jnp.stack([first, *more], axis=1)


def abstract_draw(shape: DeviceShape, rows: int) -> DrawParams:
    """Returns the shapes of how rows are drawn."""
    real, ints = (jax.ShapeDtypeStruct((rows,), dtype) for dtype in (jnp.float32, jnp.int32))
    mask = jax.ShapeDtypeStruct((rows, -(-shape.vocab_size // 32)), jnp.int32)
    seed: Any = jax.ShapeDtypeStruct((rows,), jnp.uint32)
    biases: Any = tuple(jax.ShapeDtypeStruct((rows, shape.max_biased), dtype) for dtype in (jnp.int32, jnp.float32))
    every: tuple[Any, ...] = (real, ints, real, real, real, real, real, seed, ints, ints, mask, *biases)
    return DrawParams(*every)


def _remembered(last: Array, slots: Array, draws: Array, tokens: Array) -> Array:
    return last.at[jnp.where(draws, slots, last.shape[0])].set(tokens, mode="drop")


def _last_of(tokens: Array) -> Array:
    """Returns the last token `[R]` of each row that is one."""
    return jnp.take_along_axis(tokens, jnp.sum(tokens >= 0, axis=1, keepdims=True) - 1, axis=1)[:, 0]
