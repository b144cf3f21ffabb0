# SPDX-License-Identifier: Apache-2.0
"""For tests of pipelines: a layer in which any mistake shows, and parameters where a mesh stores them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from dovetail.module import Module, ParamSpec, specs
from dovetail.parallel import MeshLayout
from support.loops import Context


class Layer(Module):
    """Reports everything there is to report, uses arguments of all kinds, and has no derivative at 0."""

    DIM = 4

    class Config(Module.Config):
        publishes: bool = False

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (self.DIM, self.DIM), axes=(None, None))
        self.state("load", (self.DIM,), axes=(None,), lifetime="run")

    def forward(self, x, context: Context):
        shift, scale, offset = (context.given[name] for name in ("shift", "scale", "offset"))
        x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        x = x + jnp.tanh(x @ self.weight) * scale[:, :, None] + shift[:, :, None] + offset
        if self.cfg.publishes:
            x = x + jnp.tanh(context.get("first", jnp.zeros_like(x)))
            x = x + context.get("last", {"mean": jnp.zeros(x.shape[:1], x.dtype)})["mean"][:, None, None]
            self.publish("first", x, keep="first")
            self.publish("last", {"mean": jnp.mean(x, axis=(1, 2))})
        if self.training:
            x = jnp.where(jax.random.bernoulli(self.rng(), 0.5, x.shape), x, x / 2)
        self.summary("size", jnp.mean(jnp.square(x)))
        self.summary("positive", jnp.sum(x > 0))
        self.add_loss("spread", jnp.square(jnp.mean(x)))
        self.update("load", jnp.mean(x, axis=(0, 1)))
        return x


def stored(model: Module, params: Any, layout: MeshLayout | None) -> Any:
    """Returns the parameters on the ambient mesh."""
    assert layout is not None
    return jax.tree.map(
        lambda spec, x: jax.device_put(x, NamedSharding(jax.sharding.get_mesh(), layout.partition(spec))),
        specs(model),
        params,
        is_leaf=lambda x: isinstance(x, ParamSpec),
    )
