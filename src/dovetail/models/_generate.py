# SPDX-License-Identifier: Apache-2.0
"""Text generation: prompts in, continuations out, in one compiled program."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigBase, ConfigError
from dovetail.module import Module, Params, State, call


class Sampling(ConfigBase):
    """How the next token is drawn from the logits."""

    temperature: float = 1.0  # 0: always the most likely token.
    top_k: int | None = None  # Only the k most likely tokens.
    top_p: float | None = None  # Only the most likely tokens that together reach this probability.

    def check(self) -> None:
        """Raises if a value makes no sense."""
        if self.temperature < 0:
            raise ConfigError(f"temperature is {self.temperature}, expected 0 or more.")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}, expected at least 1, or none.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}, expected 0 < top_p <= 1, or none.")


def sample(logits: Array, key: Array, sampling: Sampling) -> Array:
    """Draws one token for each row of logits `[B, V]`."""
    logits = logits.astype(jnp.float32)
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = jax.lax.top_k(logits, sampling.top_k)[0][:, -1:]
        logits = jnp.where(logits < kth, -jnp.inf, logits)
    if sampling.top_p is not None and sampling.top_p < 1:
        descending = jnp.sort(logits, axis=-1, descending=True)
        before = jnp.cumsum(jax.nn.softmax(descending, axis=-1), axis=-1) - jax.nn.softmax(descending, axis=-1)
        # The least likely token that is still needed; the most likely one always is.
        least = jnp.min(jnp.where(before < sampling.top_p, descending, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


class _Loop(NamedTuple):
    step: Array
    last: Array  # [B]: the token drawn last.
    done: Array  # [B]: whether the row has ended.
    tokens: Array  # [B, max_new]
    state: State


def generate(
    model: Module,
    params: Params,
    prompts: Array,
    lengths: Array,
    *,
    key: Array,
    max_new: int,
    sampling: Sampling | None = None,
    stop: int | None = None,
) -> Array:
    """Returns `[B, max_new]` new tokens for each prompt; after a stop token a row is filled with it.

    Args:
        prompts: `[B, T]`, padded at the end.
        lengths: `[B]`, the real length of each prompt, at least 1.
    """
    sampling = sampling or Sampling()
    sampling.check()
    batch, time = prompts.shape
    logits, collected = call(model, params, prompts, lengths=lengths, state={}, capacity=time + max_new)
    final = jnp.take_along_axis(logits, (lengths - 1)[:, None, None], axis=1)[:, 0]
    first = sample(final, jax.random.fold_in(key, 0), sampling)
    filler = 0 if stop is None else stop

    def body(loop: _Loop) -> _Loop:
        tokens = jax.lax.dynamic_update_slice_in_dim(loop.tokens, loop.last[:, None], loop.step, axis=1)
        logits, collected = call(model, params, loop.last[:, None], state=loop.state)
        drawn = sample(logits[:, 0], jax.random.fold_in(key, loop.step + 1), sampling)
        done = loop.done if stop is None else loop.done | (loop.last == stop)
        return _Loop(loop.step + 1, jnp.where(done, filler, drawn), done, tokens, collected.state or {})

    def going(loop: _Loop) -> Array:
        return (loop.step < max_new) & ~jnp.all(loop.done)

    start = _Loop(
        step=jnp.zeros((), jnp.int32),
        last=first,
        done=jnp.zeros((batch,), bool),
        tokens=jnp.full((batch, max_new), filler, jnp.int32),
        state=collected.state or {},
    )
    return jax.lax.while_loop(going, body, start).tokens
