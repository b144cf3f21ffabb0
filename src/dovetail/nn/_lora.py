# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters."""

import math

import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError
from dovetail.module import constant

from ._linear import DenseLinear, Linear


class LoRALinear(Linear):
    """Adds to another map a product of two thin matrices: `inner(x) + alpha / rank * (x @ lora_a) @ lora_b`.

    `lora_b` starts at zero: a new adapter changes nothing. What learns is up to the learner, which freezes all but the
    adapters if its `trainable` is `("*.lora_*",)`.

    Reference: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021 (arXiv:2106.09685).
    """

    class Config(Linear.Config):
        rank: int = 8
        alpha: float = 16.0
        inner: Linear.Config = DenseLinear.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.rank < 1:
            raise ConfigError(f"{self!r}: rank is {cfg.rank}, expected at least 1.")
        ends = {"in_shape": cfg.in_shape, "in_axes": cfg.in_axes, "out_shape": cfg.out_shape, "out_axes": cfg.out_axes}
        self.inner = self.child("inner", cfg.inner.set(**ends))
        ins, outs = len(cfg.in_shape), len(cfg.out_shape)
        self.param(
            "lora_a",
            (*cfg.in_shape, cfg.rank),
            axes=(*cfg.in_axes, None),
            in_dims=tuple(range(-ins - 1, -1)),
            out_dims=(-1,),
        )
        self.param(
            "lora_b",
            (cfg.rank, *cfg.out_shape),
            axes=(None, *cfg.out_axes),
            init=constant(0.0),
            in_dims=(-outs - 1,),
            out_dims=tuple(range(-outs, 0)),
        )

    def forward(self, x: Array) -> Array:
        cfg = self.cfg
        y = self.inner(x)
        if not self.enabled("lora"):
            return y
        narrow = x.reshape(*x.shape[: x.ndim - len(cfg.in_shape)], -1) @ self.lora_a.reshape(-1, cfg.rank)
        added = narrow @ self.lora_b.reshape(cfg.rank, math.prod(cfg.out_shape))
        return y + added.reshape(y.shape) * self._scale

    def matrix(self) -> Array:
        if not self.enabled("lora"):
            return self.inner.matrix()
        return self.inner.matrix() + jnp.tensordot(self.lora_a, self.lora_b, axes=1) * self._scale

    @property
    def _scale(self) -> float:
        return self.cfg.alpha / self.cfg.rank
