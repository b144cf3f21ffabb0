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
        tokens = x.reshape(-1, x.shape[-1])
        weights, experts = self.router(tokens)
        sent = self.dispatch.send(tokens, experts)
        y = self.dispatch.combine(self.experts(sent.rows, sent.sizes), weights, sent).reshape(x.shape)
        return y if self.shared is None else y + self.shared(x)


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
