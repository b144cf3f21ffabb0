# SPDX-License-Identifier: Apache-2.0
"""Attention kernels: one interface, an implementation for each way to compute it.

`ReferenceAttention` is the definition. `BlockwiseAttention` works on a block of queries at a time, keeps no scores for
the backward pass, and skips keys that the mask rules out.

Shape letters: B batch, T queries, S keys, H query heads, G key heads, R = H / G, K head dim.
"""

import abc

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import Component, ConfigError

from ._masks import Mask, Tokens

# Added to scores that the mask rules out: far below any score, far from overflow in float32.
_MASKED = -1e30


class AttentionKernel(Component, abc.ABC):
    """The interface between attention layers and the ways to compute attention."""

    @abc.abstractmethod
    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        mask: Mask,
        q_tokens: Tokens,
        k_tokens: Tokens,
        scale: float,
        aligned: bool,
    ) -> Array:
        """Returns `[B, T, H, K]`: for each query, the mean of the values weighted by softmax of the scores.

        A query that may see no key gets zeros. Scores and sums are in float32, the result has the dtype of `q`.

        Args:
            q: `[B, T, H, K]`, with H a multiple of G: heads h and h + 1 of a group share a key head.
            k, v: `[B, S, G, K]`.
            aligned: queries and keys are the same tokens in order, so that the mask's static bounds hold.
        """


class ReferenceAttention(AttentionKernel):
    """All scores at once: the definition, for short sequences, single tokens and tests."""

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        mask: Mask,
        q_tokens: Tokens,
        k_tokens: Tokens,
        scale: float,
        aligned: bool,
    ) -> Array:
        return attend(q, k, v, mask, q_tokens, k_tokens, scale)


class BlockwiseAttention(AttentionKernel):
    """One block of queries at a time, each against the keys that the mask leaves it.

    In the backward pass the scores of a block are computed again. Blocks do not depend on each other, so a compiler is
    free to work on several at once; XLA for CPU does, and then saves memory only where the mask rules out keys.
    """

    class Config(AttentionKernel.Config):
        block: int = 512  # Queries in a block.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.block < 1:
            raise ConfigError(f"{self._path or 'BlockwiseAttention'}: block is {cfg.block}, expected at least 1.")

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        mask: Mask,
        q_tokens: Tokens,
        k_tokens: Tokens,
        scale: float,
        aligned: bool,
    ) -> Array:
        length, block = q.shape[1], self.cfg.block
        if length <= block:
            return attend(q, k, v, mask, q_tokens, k_tokens, scale)
        one = jax.checkpoint(attend, static_argnums=(3, 6))
        out: list[Array] = []
        for start in range(0, length, block):
            stop = min(start + block, length)
            low, high = mask.keys_for(start, stop, k.shape[1]) if aligned else (0, k.shape[1])
            queries = q[:, start:stop]
            if high <= low:
                out.append(jnp.zeros_like(queries))
                continue
            tokens = q_tokens.slice(start, stop), k_tokens.slice(low, high)
            out.append(one(queries, k[:, low:high], v[:, low:high], mask, *tokens, scale))
        return jnp.concatenate(out, axis=1)


def attend(q: Array, k: Array, v: Array, mask: Mask, q_tokens: Tokens, k_tokens: Tokens, scale: float) -> Array:
    """Returns attention of all of `q` to all of `k`; see `AttentionKernel` for the shapes."""
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = jnp.einsum("btgrk,bsgk->bgrts", grouped, k, preferred_element_type=jnp.float32) * scale
    allowed = mask.allowed(q_tokens, k_tokens)[:, None, None]
    scores = jnp.where(allowed, scores, _MASKED)
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.where(allowed, weights, 0.0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1.0, total)
    out = jnp.einsum("bgrts,bsgk->btgrk", weights.astype(v.dtype), v)
    return out.reshape(q.shape).astype(q.dtype)
