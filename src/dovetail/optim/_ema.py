# SPDX-License-Identifier: Apache-2.0
"""Exponential moving average of the parameters, for evaluation."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import Component

from ._checks import expect
from ._precision import widen


class EMA(Component):
    """The mean of the parameters over the last updates, `1 / (1 - decay)` of them or so; in float32.

    Update t, counted from 1, moves the mean by `step * (parameters - mean)`, and `start` says how it begins:

    - "params": `step = 1 - decay`; the mean starts as the initial parameters.
    - "debias": `step = (1 - decay) / (1 - decay**t)`; the initial parameters do not count. This is the mean that starts
      at zero, divided by its total weight.
    - "warmup": `step = max(1 - decay, 9 / (10 + t))`; the initial parameters are forgotten faster.
    """

    class Config(Component.Config):
        decay: float = 0.999
        start: Literal["params", "debias", "warmup"] = "params"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        expect(self, "decay", 0 < cfg.decay < 1, "more than 0 and less than 1")

    def init(self, params: Any) -> Any:
        """Returns the mean before the first update; a copy, so that both may be donated."""
        return jax.tree.map(jnp.copy, widen(params))

    def update(self, mean: Any, params: Any, count: Array) -> Any:
        """Returns the mean after update number `count`, from 1, which gave `params`."""
        step = self._step(count.astype(jnp.float32))
        return jax.tree.map(lambda m, p: m + step.astype(m.dtype) * (p - m), mean, widen(params))

    def _step(self, count: Array) -> Array:
        decay = self.cfg.decay
        match self.cfg.start:
            case "params":
                return jnp.full_like(count, 1 - decay)
            case "debias":
                return (1 - decay) / -jnp.expm1(count * math.log(decay))  # 1 - decay**count, without cancellation.
            case _:
                return jnp.maximum(9 / (10 + count), 1 - decay)
