# SPDX-License-Identifier: Apache-2.0
"""Which gradients are not used: those that are not finite, and those far larger than usual."""

import math
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from dovetail.config import Component

from ._checks import expect


class SkipState(NamedTuple):
    """What is known of the gradients accepted so far."""

    norms: Array  # The last ones, in a ring; inf where there is none yet.
    num_norms: Array  # Number of norms put into the ring so far.
    streak: Array  # Number of spikes skipped since a gradient was accepted.


class Skip(Component):
    """Skips steps whose gradient or loss is not finite, and with `spike_factor` those whose gradient norm spikes.

    A spike is a norm above `spike_factor` times the median, or mean, of the last accepted ones. After
    `max_streak` spikes without an accepted gradient between them, the next is taken for a new usual size: it is
    accepted, and the record starts anew.
    """

    class Config(Component.Config):
        spike_factor: float | None = None  # None: spikes are not skipped.
        usual: Literal["median", "mean"] = "median"
        window: int = 128  # Number of norms that the usual one is taken from.
        min_window: int = 32  # As long as fewer are known, nothing is a spike.
        max_streak: int = 16

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        factor_ok = cfg.spike_factor is None or 1 < cfg.spike_factor < math.inf
        expect(self, "spike_factor", factor_ok, "a number greater than 1, or None")
        expect(self, "window", cfg.window >= 1, "at least 1")
        expect(self, "min_window", 1 <= cfg.min_window <= cfg.window, f"1 to window ({cfg.window})")
        expect(self, "max_streak", cfg.max_streak >= 1, "at least 1")

    def init(self) -> SkipState | tuple[()]:
        """Returns the record before the first step; it is empty where no spikes are looked for."""
        if self.cfg.spike_factor is None:
            return ()
        return SkipState(
            norms=jnp.full((self.cfg.window,), jnp.inf, jnp.float32),
            num_norms=jnp.zeros((), jnp.int32),
            streak=jnp.zeros((), jnp.int32),
        )

    def step(self, state: Any, norm: Array, loss: Array | None) -> tuple[Array, Any]:
        """Returns whether the step with this gradient norm is accepted, and the new record."""
        finite = jnp.isfinite(norm)
        if loss is not None:
            finite &= jnp.all(jnp.isfinite(loss))
        if self.cfg.spike_factor is None:
            return finite, state
        spike = (state.num_norms >= self.cfg.min_window) & (norm > self.cfg.spike_factor * self._usual(state))
        anew = finite & spike & (state.streak >= self.cfg.max_streak)
        accepted = finite & (~spike | anew)
        count = jnp.where(anew, 0, state.num_norms)
        norms = jnp.where(anew, jnp.inf, state.norms)
        return accepted, SkipState(
            norms=jnp.where(accepted, norms.at[count % self.cfg.window].set(norm), state.norms),
            num_norms=count + accepted.astype(jnp.int32),
            streak=jnp.where(accepted, 0, state.streak + (finite & spike).astype(jnp.int32)),
        )

    def _usual(self, state: SkipState) -> Array:
        known = jnp.minimum(state.num_norms, self.cfg.window)
        if self.cfg.usual == "mean":
            total = jnp.sum(jnp.where(jnp.arange(self.cfg.window) < known, state.norms, 0.0))
            return total / jnp.maximum(known, 1).astype(jnp.float32)
        ordered = jnp.sort(state.norms)
        return (ordered[jnp.maximum(known - 1, 0) // 2] + ordered[known // 2]) / 2
