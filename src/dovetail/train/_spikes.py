# SPDX-License-Identifier: Apache-2.0
"""`Spikes`: which steps have a loss, or a gradient, far above what is usual, by median and deviation.

The rule is a part of the compiled step and its record is a part of the training state: it decides the same for every
process, and a resumed run decides as the unbroken one.
"""

import math
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from dovetail.config import Component, ConfigError
from dovetail.optim import Skip


class SpikeState(NamedTuple):
    """What is known of the steps whose update was applied."""

    losses: Array  # The last ones, in a ring; inf where there is none yet.
    norms: Any  # Of gradients, likewise; () where they are not looked at.
    num_steps: Array  # Number of them put into the ring so far.
    streak: Array  # Steps without an update since the last one that had it, for whatever reason.
    spikes: Array  # Found so far.


class Verdict(NamedTuple):
    """What the rule says of a step."""

    spike: Array
    figures: dict[str, Array]  # What is usual, and the limit.


class Spikes(Component):
    """Passes over steps whose loss spikes: above the median of the last ones, plus so many of their deviations.

    The deviation is the median of the distances from the median (MAD), which a few outliers do not change. The update
    of such a step is not applied: parameters, optimizer, average and schedule stay as they are, as after a step that is
    not finite. With `policy="rollback"` the run then goes back to the newest checkpoint before it, and goes on from
    there with the batches after that of the spike.
    """

    class Config(Component.Config):
        policy: Literal["skip", "rollback"] = "skip"
        deviations: float = 10.0  # Of normal noise, 10 are 6.7 standard deviations.
        margin: float = 0.02  # The limit is at least this share of the median above it.
        window: int = 128  # Number of steps that median and deviation are taken from; the last with an update.
        warmup: int = 100  # As long as fewer steps had an update, nothing is a spike.
        grad_norm: bool = False  # Whether the norm of the gradients, before clipping, is looked at as well.
        rollback_after_bad: int | None = None  # Steps in a row that are not finite, or spikes, and lead to a rollback.
        max_rollbacks: int = 20  # Of a run; one more is an error.
        may_change: ClassVar[frozenset[str]] = frozenset({"max_rollbacks"})  # When a run is resumed.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        after = cfg.rollback_after_bad
        for name, ok, expected in (
            ("deviations", 0 < cfg.deviations < math.inf, "a positive number"),
            ("margin", 0 <= cfg.margin < math.inf, "a number of 0 or more"),
            ("window", cfg.window >= 1, "at least 1"),
            ("warmup", cfg.warmup >= 1, "at least 1"),
            ("rollback_after_bad", after is None or after >= 1, "at least 1, or None"),
            ("max_rollbacks", cfg.max_rollbacks >= 0, "at least 0"),
        ):
            if not ok:
                raise ConfigError(f"{self._path}.{name}: is {getattr(cfg, name)!r}, expected {expected}.")

    def check(self, skip: Skip.Config | None) -> None:
        """Raises if the learner passes over spikes by another rule: each would not know what the other leaves out."""
        if skip is not None and skip.spike_factor is not None:
            raise ConfigError(
                f"{self._path} and learner.skip.spike_factor both say what a spike is. Use one of them: "
                f"learner.skip.spike_factor=None, or {self._path}=None."
            )

    def init(self) -> SpikeState:
        """Returns the record before the first step."""

        def ring() -> Array:
            return jnp.full((self.cfg.window,), jnp.inf, jnp.float32)

        def zero() -> Array:
            return jnp.zeros((), jnp.int32)  # Its own each time: all of the state is donated.

        return SpikeState(ring(), ring() if self.cfg.grad_norm else (), zero(), zero(), zero())

    def judge(self, state: SpikeState, loss: Array, norm: Array) -> Verdict:
        """Returns whether a step with this loss and norm of gradients is a spike. What is not finite is none."""
        warm = state.num_steps >= self.cfg.warmup
        spike, figures = jnp.array(False), dict[str, Array]()
        looked_at = [("loss", state.losses, loss)] + ([("norm", state.norms, norm)] if self.cfg.grad_norm else [])
        for name, ring, value in looked_at:
            median = _median(ring, state.num_steps)
            deviation = _median(jnp.abs(ring - jnp.where(jnp.isinf(ring), 0.0, median)), state.num_steps)
            above = jnp.maximum(self.cfg.deviations * deviation, self.cfg.margin * jnp.abs(median))
            limit = jnp.where(warm, median + above, jnp.inf)
            spike |= jnp.isfinite(value) & (value > limit)
            figures |= {f"spike/{name}_median": median, f"spike/{name}_limit": limit}
        return Verdict(spike, figures)

    def record(
        self, state: SpikeState, loss: Array, norm: Array, accepted: Array
    ) -> tuple[SpikeState, dict[str, Array]]:
        """Returns the record after a step, of which `accepted` says whether its update was applied, and metrics.

        Metrics: `spikes`, found so far; `spike/streak`, steps without an update up to this one; what was usual.
        """
        verdict = self.judge(state, loss, norm)
        kept = accepted & jnp.isfinite(loss) & jnp.isfinite(norm)

        def put(ring: Array, value: Array) -> Array:
            return jnp.where(kept, ring.at[state.num_steps % self.cfg.window].set(value.astype(jnp.float32)), ring)

        new = SpikeState(
            losses=put(state.losses, loss),
            norms=put(state.norms, norm) if self.cfg.grad_norm else (),
            num_steps=state.num_steps + kept.astype(jnp.int32),
            streak=jnp.where(accepted, 0, state.streak + 1),
            spikes=state.spikes + verdict.spike.astype(jnp.int32),
        )
        found = {"spikes": new.spikes, "spike/streak": new.streak, "spike/here": verdict.spike}
        return new, {**found, **verdict.figures}


def _median(ring: Array, count: Array) -> Array:
    """Returns the median of the entries there are; inf if there are none. The others are inf."""
    known = jnp.minimum(count, len(ring))
    ordered = jnp.sort(ring)
    return (ordered[jnp.maximum(known - 1, 0) // 2] + ordered[known // 2]) / 2
