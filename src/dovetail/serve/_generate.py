# SPDX-License-Identifier: Apache-2.0
"""Text generation: prompts in, continuations out, in one compiled program."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from dovetail.config import ConfigBase, ConfigError
from dovetail.module import Layout, Module, Params, State, call, make_state, state_specs


class Sampling(ConfigBase):
    """How the next token is drawn from the logits. Where several limits are given, a token must pass each in turn."""

    temperature: float = 1.0  # 0: always the most likely token.
    top_k: int | None = None  # Only the k most likely tokens.
    top_p: float | None = None  # Only the most likely tokens that together reach this probability.
    min_p: float | None = None  # Only tokens at least this likely, relative to the most likely one.
    stop: tuple[int, ...] | None = None  # Tokens that end a text; None: the end-of-text token of the tokenizer.

    def check(self) -> None:
        """Raises if a value makes no sense."""
        if self.temperature < 0:
            raise ConfigError(f"temperature is {self.temperature}, expected 0 or more.")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}, expected at least 1, or none.")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ConfigError(f"{name} is {value}, expected 0 < {name} <= 1, or none.")


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
        share = jax.nn.softmax(descending, axis=-1)
        before = jnp.cumsum(share, axis=-1) - share
        # The least likely token that is still needed; the most likely one always is.
        least = jnp.min(jnp.where(before < sampling.top_p, descending, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sampling.min_p is not None:
        least = jnp.max(logits, axis=-1, keepdims=True) + math.log(sampling.min_p)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


class _Loop(NamedTuple):
    step: Array  # How many tokens each row has, those after its end included.
    last: Array  # [B]: the token drawn last, or the one that ended the row.
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
    step: Array | int = 0,
    dtype: DTypeLike | None = None,
    layout: Layout | None = None,
) -> Array:
    """Returns `[B, max_new]` new tokens for each prompt. A row ends with a stop token, and is filled with that token.

    A tokenizer is not known here: where `sampling.stop` is None, nothing stops a row.

    Args:
        model: has methods `last_logits` and `max_length`, as `CausalLM` does.
        prompts: `[B, T]`, padded at the end.
        lengths: `[B]`, the real length of each prompt, at least 1.
        step: of training, after which the parameters are those of the model; for modules that ask for it.
        dtype: of the computation, as in `call`; so is `layout`.
    """
    sampling = sampling or Sampling()
    sampling.check()
    if max_new < 1:
        raise ConfigError(f"max_new is {max_new}, expected at least 1.")
    batch, length = prompts.shape
    capacity = length + max_new - 1  # The last token is drawn, not read.
    longest, _ = call(model, params, method="max_length")
    if longest is not None and capacity > longest:
        raise ConfigError(
            f"{model!r}: a prompt of {length} tokens and {max_new} new ones, but max_length is {longest}.\n"
            "  Use a shorter prompt, or fewer new tokens."
        )
    options: dict[str, Any] = {"method": "last_logits", "dtype": dtype, "layout": layout}
    sizes = {"batch": batch, "capacity": capacity}
    state = make_state(state_specs(model, params, prompts, lengths=lengths, sizes=sizes, **options), layout)
    next_logits = functools.partial(call, model, params, step=step, **options)
    logits, collected = next_logits(prompts, lengths=lengths, state=state)

    def ended(token: Array) -> Array:
        return jnp.isin(token, jnp.asarray(sampling.stop or (), jnp.int32))

    def body(loop: _Loop) -> _Loop:
        logits, collected = next_logits(loop.last[:, None], state=loop.state)
        drawn = sample(logits, jax.random.fold_in(key, loop.step), sampling)
        drawn = jnp.where(loop.done, loop.last, drawn)
        tokens = jax.lax.dynamic_update_slice_in_dim(loop.tokens, drawn[:, None], loop.step, axis=1)
        return _Loop(loop.step + 1, drawn, loop.done | ended(drawn), tokens, collected.state or {})

    def going(loop: _Loop) -> Array:
        return (loop.step < max_new) & ~jnp.all(loop.done)

    first = sample(logits, jax.random.fold_in(key, 0), sampling)
    start = _Loop(
        step=jnp.ones((), jnp.int32),
        last=first,
        done=ended(first),
        tokens=jnp.broadcast_to(first[:, None], (batch, max_new)),
        state=collected.state or {},
    )
    end = jax.lax.while_loop(going, body, start)
    return jnp.where(jnp.arange(max_new) < end.step, end.tokens, end.last[:, None])
