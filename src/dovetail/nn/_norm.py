# SPDX-License-Identifier: Apache-2.0
"""Normalisation layers."""

import abc

from jax import Array

from dovetail.config import REQUIRED
from dovetail.module import Module, constant
from dovetail.ops import layer_norm, rms_norm


class Norm(Module, abc.ABC):
    """The interface: normalises over the last dimension."""

    class Config(Module.Config):
        dim: int = REQUIRED
        axis: str | None = "embed"  # Logical name of that dimension.

    @abc.abstractmethod
    def forward(self, x: Array) -> Array:
        """Maps `[*B, dim]` to the same shape and dtype."""


class RMSNorm(Norm):
    """Root-mean-square normalisation with a learned scale."""

    class Config(Norm.Config):
        eps: float = 1e-6

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("scale", (cfg.dim,), axes=(cfg.axis,), init=constant(1.0))

    def forward(self, x: Array) -> Array:
        return rms_norm(x, self.scale, eps=self.cfg.eps)


class LayerNorm(Norm):
    """Layer normalisation with a learned scale and, by choice, bias."""

    class Config(Norm.Config):
        eps: float = 1e-5
        bias: bool = True

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("scale", (cfg.dim,), axes=(cfg.axis,), init=constant(1.0))
        if cfg.bias:
            self.param("bias", (cfg.dim,), axes=(cfg.axis,), init=constant(0.0))

    def forward(self, x: Array) -> Array:
        return layer_norm(x, self.scale, self.bias if self.cfg.bias else None, eps=self.cfg.eps)
