# SPDX-License-Identifier: Apache-2.0
"""Mixture of depths: a layer works on the tokens that its router chooses, and the others pass it by.

While training, it chooses a share of each row, the tokens with the highest scores. Whether a token is among them
depends on later ones; so a loss teaches the score to be above 0 for the chosen ones, by which evaluation and decoding
choose, token by token. What is not chosen is not in the cache of the layer.

Reference: Raposo et al., Mixture-of-Depths, 2024 (arXiv:2404.02258).

    dovetail train examples/mixture_of_depths.py:run
"""

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, replace_all
from dovetail.nn import Attention, Block, Context, DenseLinear, Layer, Linear
from dovetail.ops import EMPTY, Tokens
from dovetail.zoo import recipe


class MixtureOfDepths(Layer):
    """Applies a layer to some of the tokens: `x + score * (layer(x) - x)` for these, `x` for the others."""

    class Config(Layer.Config):
        inner: Layer.Config = REQUIRED
        share: float = 0.5  # Of the tokens of each row, while training.
        router: Linear.Config = DenseLinear.Config()
        weight: float = 0.01  # Of the loss that teaches the scores.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner.set(dim=cfg.dim))
        ends = {"in_shape": (cfg.dim,), "in_axes": ("embed",), "out_shape": (1,), "out_axes": (None,)}
        self.router = self.child("router", cfg.router.set(**ends))

    def forward(self, x: Array, context: Context) -> Array:
        scores = self.router(x)[..., 0].astype(jnp.float32)
        return self._by_share(x, scores, context) if self.training else self._by_score(x, scores, context)

    def _by_share(self, x: Array, scores: Array, context: Context) -> Array:
        count = max(1, int(x.shape[1] * self.cfg.share))
        places = jnp.sort(jax.lax.top_k(jax.lax.stop_gradient(scores), count)[1], axis=1)
        rows = jnp.arange(x.shape[0])[:, None]
        chosen = jnp.zeros(scores.shape).at[rows, places].set(1.0)
        losses = jnp.maximum(scores, 0) - scores * chosen + jnp.log1p(jnp.exp(-jnp.abs(scores)))
        self.add_loss("choice", self.cfg.weight * jnp.mean(losses))

        def some(each: Array) -> Array:
            return jnp.broadcast_to(each, scores.shape)[rows, places]

        tokens, positions, ids = jax.tree.map(some, (context.tokens, context.positions, context.ids))
        inner = context.set(tokens=tokens, positions=positions, ids=ids)
        old = x[rows, places]
        weights = jax.nn.sigmoid(scores[rows, places])[..., None].astype(x.dtype)
        return x.at[rows, places].add(weights * (self.inner(old, inner) - old))

    def _by_score(self, x: Array, scores: Array, context: Context) -> Array:
        chosen = scores > 0
        hidden = Tokens(jnp.where(chosen, context.tokens.index, EMPTY), context.tokens.segment, context.tokens.prefix)
        y = self.inner(x, context.set(tokens=hidden))
        weights = jax.nn.sigmoid(scores)[..., None].astype(x.dtype)
        return jnp.where(chosen[..., None], x + weights * (y - x), x)


def with_mixture_of_depths(cfg):
    def around(block: Block.Config):
        return MixtureOfDepths.Config(inner=block) if isinstance(block.mixer, Attention.Config) else block

    return replace_all(Block.Config, around)(cfg)


def run():
    return with_mixture_of_depths(recipe("llama3-tiny"))
