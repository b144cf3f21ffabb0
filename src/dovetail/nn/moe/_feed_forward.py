# SPDX-License-Identifier: Apache-2.0
"""Feed-forward layers made of experts, of which each token uses a few.

Shape letters: M rows, E experts, C rows of each expert.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from dovetail.config import REQUIRED, FunctionConfig, config_for
from dovetail.ops import Gated, gated

from .._context import Context
from .._feed_forward import FeedForward, GatedFeedForward
from .._linear import DenseLinear, Linear
from ._dispatch import Dispatch, Dropless
from ._linear import DenseGroupedLinear, GroupedLinear
from ._router import Router, TopKRouter


class MoEFeedForward(FeedForward):
    """Computes, for each token, the weighted sum of the experts that the router chose, plus the shared one.

    An expert is a feed-forward, gated or not as its activation is. It has the fields of the dense ones, so that those
    keep activation, biases and initial values when experts take their place.

    A feed-forward does not know which tokens are padding: they are routed like the others, and count in the balance.
    """

    class Config(FeedForward.Config):
        hidden_dim: int = REQUIRED  # Of each expert.
        num_experts: int = REQUIRED
        router: Router.Config = TopKRouter.Config()
        dispatch: Dispatch.Config = Dropless.Config()
        activation: Callable[[Array], Array] | FunctionConfig[Gated] = config_for(gated)
        gate: GroupedLinear.Config = DenseGroupedLinear.Config()  # Unless the activation takes none.
        up: GroupedLinear.Config = DenseGroupedLinear.Config()
        down: GroupedLinear.Config = DenseGroupedLinear.Config()
        shared: FeedForward.Config | None = None  # For every token.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.router = self.child("router", cfg.router.set(num_experts=cfg.num_experts, dim=cfg.dim))
        self.dispatch = self.child("dispatch", cfg.dispatch.set(num_experts=cfg.num_experts))
        self._gated: Gated | None = cfg.activation.build() if isinstance(cfg.activation, FunctionConfig) else None
        self.gate: Any = self.child("gate", _up(cfg, cfg.gate)) if self._gated else None
        self.up = self.child("up", _up(cfg, cfg.up))
        self.down = self.child("down", _down(cfg, cfg.down))
        self.shared = self.child("shared", cfg.shared.set(dim=cfg.dim)) if cfg.shared else None

    def forward(self, x: Array, context: Context | None = None) -> Array:
        axes = ("batch", "seq", None)
        x = self.constrain(x, *axes)
        inputs = [x, *(self.constrain(each, *axes) for each in self.router(x))]
        if self.dispatch.is_local():
            y = self.on_shards(self._routed, *inputs, in_axes=(axes,) * 3, out_axes=axes, keep=("expert",))
        else:
            y = self._routed(*inputs)
        # Laid out twice: the first says that gradients come whole, before there is a copy for each expert of a token.
        y = self.constrain(self.constrain(y, *axes), "batch", "stream", None)
        return y if self.shared is None else y + self.shared(x, context)

    def _routed(self, x: Array, weights: Array, experts: Array) -> Array:
        sent = self.dispatch.send(x, experts)
        return self.dispatch.combine(sent.through(self._experts), weights, sent)

    def _experts(self, rows: Array, sizes: Array | None) -> Array:
        """Maps rows as `GroupedLinear` does, `[M, dim]` or `[E, C, dim]`, each by the expert that it was sent to."""
        up = self.up(rows, sizes)
        hidden = self.cfg.activation(up) if self._gated is None else self._gated(self.gate(rows, sizes), up)
        return self.down(self.tag("hidden", hidden), sizes)


def _up(cfg: MoEFeedForward.Config, to: GroupedLinear.Config) -> GroupedLinear.Config:
    shape = {"in_dim": cfg.dim, "in_axis": "embed", "out_dim": cfg.hidden_dim, "out_axis": "mlp"}
    return to.set(num_experts=cfg.num_experts, **shape)


def _down(cfg: MoEFeedForward.Config, to: GroupedLinear.Config) -> GroupedLinear.Config:
    shape = {"in_dim": cfg.hidden_dim, "in_axis": "mlp", "out_dim": cfg.dim, "out_axis": "embed"}
    return to.set(num_experts=cfg.num_experts, **shape)


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

    def forward(self, x: Array, context: Context | None = None) -> Array:
        return jax.nn.sigmoid(self.weight(x)) * self.inner(x, context)
