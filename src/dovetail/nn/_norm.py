# SPDX-License-Identifier: Apache-2.0
"""Normalisation layers."""

import abc
from typing import ClassVar

from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module, constant
from dovetail.ops import layer_norm, rms_norm

from ._context import Context


class Norm(Module, abc.ABC):
    """The interface: normalises over the last dimension; by what the context has, too, where a norm adapts."""

    class Config(Module.Config):
        dim: int = REQUIRED
        axis: str | None = "embed"  # Logical name of that dimension.
        groups: int = 1  # Equal parts of that dimension, each normed on its own.

    grouped: ClassVar[bool] = False  # Whether this norm knows of groups.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.groups != 1 and not self.grouped:
            raise ConfigError(f"{self!r}: groups is {cfg.groups}, but {type(self).__name__} norms all as one.")
        if cfg.groups < 1 or cfg.dim % cfg.groups:
            raise ConfigError(f"{self!r}: groups is {cfg.groups}, expected a divisor of dim ({cfg.dim}).")

    @abc.abstractmethod
    def forward(self, x: Array, context: Context | None = None) -> Array:
        """Maps `[*B, dim]` to the same shape and dtype."""


class RMSNorm(Norm):
    """Root-mean-square normalisation with, by choice, a learned scale."""

    grouped = True

    class Config(Norm.Config):
        eps: float = 1e-6
        scale: bool = True
        offset: float = 0.0  # What the scale is counted from: 1 in Gemma, whose scale starts at 0.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.scale:
            self.param("scale", (cfg.dim,), axes=(cfg.axis,), init=constant(1.0 - cfg.offset))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        cfg = self.cfg
        scale = self.scale if cfg.scale else None
        return rms_norm(x, scale, eps=cfg.eps, offset=cfg.offset, groups=cfg.groups)


class LayerNorm(Norm):
    """Layer normalisation with, by choice, a learned scale and bias."""

    grouped = True

    class Config(Norm.Config):
        eps: float = 1e-5
        scale: bool = True
        bias: bool = True

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.scale:
            self.param("scale", (cfg.dim,), axes=(cfg.axis,), init=constant(1.0))
        if cfg.bias:
            self.param("bias", (cfg.dim,), axes=(cfg.axis,), init=constant(0.0))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        cfg = self.cfg
        scale, bias = self.scale if cfg.scale else None, self.bias if cfg.bias else None
        return layer_norm(x, scale, bias, eps=cfg.eps, groups=cfg.groups)
