# SPDX-License-Identifier: Apache-2.0
"""Dropout: sets a share of the activations to zero while training."""

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError
from dovetail.module import Module


class Dropout(Module):
    """Drops each element with probability `rate` while training and scales the rest, so that the mean stays."""

    class Config(Module.Config):
        rate: float = 0.0

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if not 0.0 <= cfg.rate < 1.0:
            raise ConfigError(f"{self!r}: rate is {cfg.rate}, expected 0 <= rate < 1.")

    def forward(self, x: Array) -> Array:
        rate = self.cfg.rate
        if not rate or not self.training:
            return x
        kept = jax.random.bernoulli(self.rng(), 1.0 - rate, x.shape)
        return jnp.where(kept, x / (1.0 - rate), 0.0).astype(x.dtype)
