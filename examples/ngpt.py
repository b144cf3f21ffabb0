# SPDX-License-Identifier: Apache-2.0
"""nGPT: all vectors of the model dimension have length 1, and a layer moves the stream along the sphere.

Reference: Loshchilov et al., nGPT: Normalized Transformer with Representation Learning on the Hypersphere, 2024
(arXiv:2410.01131), section 2.6.

    dovetail train examples/ngpt.py:run
"""

import math

import jax.numpy as jnp
from jax import Array

from dovetail.config import config_for, modify, replace_all
from dovetail.module import constant
from dovetail.nn import Add, Attention, Block, Connection, Context, DenseLinear, GatedFeedForward, Linear, Norm
from dovetail.ops import rms_norm
from dovetail.optim import Group, is_matrix, unit_norm
from dovetail.zoo import recipe


class UnitNorm(Norm):
    """Length `dim ** power`, times a learned scale of each dimension where there is one: of queries and keys."""

    class Config(Norm.Config):
        scale: bool = False
        power: float = 0.0  # 1/4 for queries and keys, so that scores are up to dim ** 1/2.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.scale:
            self.param("scale", (cfg.dim,), axes=(cfg.axis,), init=constant(cfg.dim**-0.5))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        x = rms_norm(x, None, eps=1e-12) * self.cfg.dim ** (self.cfg.power - 0.5)
        return x * (self.scale * math.sqrt(self.cfg.dim)) if self.cfg.scale else x


class Sphere(Connection):
    """The stream moves from `h` towards the normed `y`, by a learned share of the way, and stays on the sphere."""

    class Config(Connection.Config):
        rate: float = 0.05  # The share at the start.
        norm: UnitNorm.Config = UnitNorm.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.norm = self.child("norm", cfg.norm.set(dim=cfg.dim))
        self.param("alpha", (cfg.dim,), axes=("embed",), init=constant(cfg.dim**-0.5))

    def read(self, h: Array, context: Context) -> Array:
        return self.norm(h)

    def write(self, h: Array, y: Array, context: Context) -> Array:
        h, share = self.norm(h), jnp.abs(self.alpha * (self.cfg.rate * math.sqrt(self.cfg.dim)))
        return self.norm(h + share * (self.norm(y) - h))


class ScaledLinear(Linear):
    """A linear map whose outputs have learned scales: of the feed-forward, and of the logits."""

    class Config(Linear.Config):
        inner: Linear.Config = DenseLinear.Config()
        power: float = 0.0  # The scale at the start is in_dim ** power.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        dim = math.prod(cfg.in_shape)
        self._factor = dim ** (cfg.power + 0.5)  # What is stored starts as dim ** -0.5, by which its rate follows.
        ends = {"in_shape": cfg.in_shape, "in_axes": cfg.in_axes, "out_shape": cfg.out_shape, "out_axes": cfg.out_axes}
        self.inner = self.child("inner", cfg.inner.set(**ends))
        self.param("scale", cfg.out_shape, axes=cfg.out_axes, init=constant(dim**-0.5), in_dims=(), out_dims=())

    def forward(self, x: Array) -> Array:
        return self.inner(x) * (self.scale * self._factor)

    def matrix(self) -> Array:
        return self.inner.matrix() * (self.scale * self._factor)


def with_ngpt(cfg):
    qk_norm, scaled = UnitNorm.Config(power=0.25, scale=True), ScaledLinear.Config()
    cfg = modify(Block.Config, lambda old: old.set(mixer_norm=None, ffn_norm=None))(cfg)
    cfg = modify(Attention.Config, lambda old: old.set(query_norm=qk_norm, key_norm=qk_norm, scale=1.0))(cfg)
    cfg = modify(GatedFeedForward.Config, lambda old: old.set(gate=scaled.set(power=0.5), up=scaled), missing="ok")(cfg)
    model = replace_all(Add.Config, Sphere.Config())(cfg.model).set(norm=UnitNorm.Config(), head=scaled)
    matrices = Group(select=is_matrix, decay=0.0, project=config_for(unit_norm))
    return cfg.set(model=model).set_in("learner.groups", (matrices,))


def run():
    return with_ngpt(recipe("llama3-tiny"))
