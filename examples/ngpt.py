# SPDX-License-Identifier: Apache-2.0
"""nGPT: all vectors of the model dimension have length 1, and a layer moves the stream along the sphere.

Reference: Loshchilov et al., nGPT: Normalized Transformer with Representation Learning on the Hypersphere, 2024
(arXiv:2410.01131), section 2.6.

    dovetail train examples/ngpt.py:run
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, chain, config_for, modify, replace_all
from dovetail.module import constant
from dovetail.nn import (
    Add,
    Attention,
    Block,
    Connection,
    Context,
    DenseLinear,
    GatedFeedForward,
    Linear,
    Norm,
)
from dovetail.optim import Group, is_matrix, unit_norm
from dovetail.zoo import recipe


def _unit(x: Array) -> Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.sum(jnp.square(wide), axis=-1, keepdims=True) + 1e-12)).astype(x.dtype)


class Sphere(Connection):
    """The stream moves from `h` towards the normed `y`, by a learned share of the way, and stays on the sphere."""

    class Config(Connection.Config):
        rate: float = 0.05  # The share at the start.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("alpha", (cfg.dim,), axes=("embed",), init=constant(cfg.dim**-0.5))

    def read(self, h: Array, context: Context) -> Array:
        return _unit(h)

    def write(self, h: Array, y: Array, context: Context) -> Array:
        h, share = _unit(h), jnp.abs(self.alpha * (self.cfg.rate * math.sqrt(self.cfg.dim)))
        return _unit(h + share * (_unit(y) - h))


class UnitNorm(Norm):
    """Length 1, times a learned scale where there is one: of queries and keys."""

    class Config(Norm.Config):
        scale: bool = True

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.scale:
            self.param("scale", (cfg.dim,), axes=(cfg.axis,), init=constant(cfg.dim**-0.5))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        return _unit(x) * (self.scale * math.sqrt(self.cfg.dim)) if self.cfg.scale else _unit(x)


class ScaledLinear(Linear):
    """A linear map whose outputs have learned scales: of the feed-forward, and of the logits."""

    class Config(Linear.Config):
        inner: Linear.Config = DenseLinear.Config()
        factor: float = 1.0  # The scale at the start.
        size: float = REQUIRED  # Of the stored scale, by which its rate of learning follows.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        ends = {"in_shape": cfg.in_shape, "in_axes": cfg.in_axes, "out_shape": cfg.out_shape, "out_axes": cfg.out_axes}
        self.inner = self.child("inner", cfg.inner.set(**ends))
        self.param("scale", cfg.out_shape, axes=cfg.out_axes, init=constant(cfg.size), in_dims=(), out_dims=())

    def forward(self, x: Array) -> Array:
        return self.inner(x) * (self.scale * (self.cfg.factor / self.cfg.size))

    def matrix(self) -> Array:
        return self.inner.matrix() * (self.scale * (self.cfg.factor / self.cfg.size))


def with_ngpt(cfg):
    """Returns a run as nGPT: no norms, no weight decay, no warm-up, and matrices that stay on the sphere."""
    dim = cfg.model.dim
    size = dim**-0.5
    gate = ScaledLinear.Config(factor=math.sqrt(dim), size=size)
    norms = {"mixer_norm": None, "ffn_norm": None, "mixer_out_norm": None, "ffn_out_norm": None}

    def attention(old: Attention.Config) -> Attention.Config:
        width = old.head_dim or dim // old.num_heads
        return old.set(query_norm=UnitNorm.Config(), key_norm=UnitNorm.Config(), scale=math.sqrt(width))

    return chain(
        modify(Block.Config, lambda block: block.set(**norms)),
        replace_all(Add.Config, Sphere.Config()),
        modify(Attention.Config, attention),
        modify(
            GatedFeedForward.Config,
            lambda old: old.set(gate=gate.set(inner=old.gate), up=gate.set(factor=1.0, inner=old.up)),
            missing="ok",
        ),
        lambda cfg: cfg.set_in("model.norm", UnitNorm.Config(scale=False)),
        lambda cfg: cfg.set_in("model.head", ScaledLinear.Config(size=size)),
        lambda cfg: cfg.set_in("model.embedding_scale", 1.0),
        lambda cfg: cfg.set_in("learner.weight_decay", None),
        lambda cfg: cfg.set_in("learner.schedule.warmup_steps", 0),
        lambda cfg: cfg.set_in("learner.groups", (Group(select=is_matrix, project=config_for(unit_norm)),)),
    )(cfg)


def run():
    return with_ngpt(recipe("llama3-tiny"))
