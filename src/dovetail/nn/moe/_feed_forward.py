# SPDX-License-Identifier: Apache-2.0
"""Feed-forward layers made of experts, of which each token uses a few."""

import jax
from jax import Array

from dovetail.config import REQUIRED

from .._feed_forward import FeedForward, GatedFeedForward
from .._linear import DenseLinear, Linear
from ._dispatch import Dispatch, Dropless
from ._experts import Experts, GatedExperts
from ._router import Router, TopKRouter


class MoEFeedForward(FeedForward):
    """Computes, for each token, the weighted sum of the experts that the router chose, plus the shared one.

    A feed-forward does not know which tokens are padding: they are routed like the others, and count in the balance.
    """

    class Config(FeedForward.Config):
        hidden_dim: int = REQUIRED  # Of each expert.
        num_experts: int = REQUIRED
        router: Router.Config = TopKRouter.Config()
        dispatch: Dispatch.Config = Dropless.Config()
        experts: Experts.Config = GatedExperts.Config()
        shared: FeedForward.Config | None = None  # For every token.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        count, sizes = cfg.num_experts, {"dim": cfg.dim, "hidden_dim": cfg.hidden_dim}
        self.router = self.child("router", cfg.router.set(num_experts=count, dim=cfg.dim))
        self.dispatch = self.child("dispatch", cfg.dispatch.set(num_experts=count))
        self.experts = self.child("experts", cfg.experts.set(num_experts=count, **sizes))
        self.shared = self.child("shared", cfg.shared.set(dim=cfg.dim)) if cfg.shared else None

    def forward(self, x: Array) -> Array:
        axes = ("batch", "seq", None)
        x = self.lay(x, *axes)
        inputs = [x, *(self.lay(each, *axes) for each in self.router(x))]
        if self.dispatch.is_local():
            y = self.on_shards(self._routed, *inputs, in_axes=(axes,) * 3, out_axes=axes, keep=("expert",))
        else:
            y = self._routed(*inputs)
        # Laid out twice: the first says that gradients come whole, before there is a copy for each expert of a token.
        y = self.lay(self.lay(y, *axes), "batch", "stream", None)
        return y if self.shared is None else y + self.shared(x)

    def _routed(self, x: Array, weights: Array, experts: Array) -> Array:
        sent = self.dispatch.send(x, experts)
        y = sent.through(lambda rows, sizes: self.experts(rows, sizes))
        return self.dispatch.combine(y, weights, sent)


class WeightedFeedForward(FeedForward):
    """Computes `sigmoid(weight(x)) * inner(x)`, one weight for each token: the shared expert of Qwen2-MoE.

    Reference: Qwen Team, Qwen1.5-MoE, 2024 (qwenlm.github.io/blog/qwen-moe).
    """

    class Config(FeedForward.Config):
        inner: FeedForward.Config = GatedFeedForward.Config()
        weight: Linear.Config = DenseLinear.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner.set(dim=cfg.dim))
        shapes = {"in_shape": (cfg.dim,), "in_axes": ("embed",), "out_shape": (1,), "out_axes": (None,)}
        self.weight = self.child("weight", cfg.weight.set(**shapes))

    def forward(self, x: Array) -> Array:
        return jax.nn.sigmoid(self.weight(x)) * self.inner(x)
