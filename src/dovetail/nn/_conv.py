# SPDX-License-Identifier: Apache-2.0
"""Convolution over time, of each channel on its own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module, constant, variance_scaling
from dovetail.ops import causal_convolution, convolution_tail


class CausalConv(Module):
    """Mixes each channel with what it was a few positions before. Where the call keeps state, it keeps those."""

    class Config(Module.Config):
        shape: tuple[int, ...] = REQUIRED  # Of the channels, such as (heads, head_dim); set by the parent.
        axes: tuple[str | None, ...] = REQUIRED  # Their logical names, set with the shape.
        width: int = 4  # Positions that one sees, itself included.
        bias: bool = True
        activation: Callable[[Array], Array] = jax.nn.silu

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.width < 1:
            raise ConfigError(f"{self!r}: width is {cfg.width}, expected at least 1.")
        size = (cfg.width, *cfg.shape)
        init = variance_scaling(1 / 3, "fan_in", "uniform")  # As PyTorch fills a convolution.
        self.param("weight", size, axes=(None, *cfg.axes), init=init, in_dims=(-len(size),), out_dims=())
        if cfg.bias:
            self.param("bias", cfg.shape, axes=cfg.axes, init=constant(0.0), in_dims=(), out_dims=())
        self.state("tail", ("batch", cfg.width - 1, *cfg.shape), axes=("batch", None, *_whole(cfg.axes)))

    def forward(self, x: Array, *, document: Array, count: Array | None = None) -> Array:
        """Maps `[B, T, *shape]` to the same.

        Args:
            document: `[B or 1, T]`: the number of the document in this call; 0 goes on from the call before.
            count: `[B]`, with state: how many positions of each row are real; the rest is padding at the end.
        """
        cfg = self.cfg
        if self.stateful:
            tail = self.tail.astype(x.dtype)
            count = jnp.full(x.shape[:1], x.shape[1]) if count is None else count
            self.update("tail", convolution_tail(x, tail, document=document, count=count).astype(self.tail.dtype))
        else:
            tail = jnp.zeros((x.shape[0], cfg.width - 1, *cfg.shape), x.dtype)
        y = causal_convolution(x, self.weight, tail, document=document)
        return cfg.activation(y + self.bias if cfg.bias else y)


def _whole(axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Returns the axes of activations of a layer that reads all of a sequence."""
    return tuple("state_heads" if axis in ("heads", "kv_heads") else None for axis in axes)
