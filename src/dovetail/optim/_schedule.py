# SPDX-License-Identifier: Apache-2.0
"""Schedules: the learning rate as a function of the number of updates made so far.

All of them rise linearly from 0 to `peak` in `warmup_steps`, and differ in what follows. The count starts at 0, so the
peak is first used in update number `warmup_steps`, counted from 0. A schedule ends with the run, unless `total_steps`
says otherwise; beyond its end, it stays where it ended. A run that is shorter than its warm-up ends in it.
"""

import abc
import math
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from dovetail.config import REQUIRED, Component, ConfigError

from ._checks import expect, where


class Schedule(Component, abc.ABC):
    """The interface: `schedule(count)` is the learning rate, in float32."""

    class Config(Component.Config):
        keeps_defaults: ClassVar[bool] = True
        peak: float = REQUIRED  # The highest learning rate.
        warmup_steps: int = 0

    def __init__(self, cfg: Config, *, steps: int | None = None, **kwargs: Any) -> None:
        """`steps` are those of the run, where there is one."""
        super().__init__(cfg, **kwargs)
        self._steps = steps
        expect(self, "peak", 0 < cfg.peak < math.inf, "a positive number")
        expect(self, "warmup_steps", cfg.warmup_steps >= 0, "at least 0")

    def __call__(self, count: ArrayLike) -> Array:
        """Returns the learning rate after `count` updates."""
        warmup = self.cfg.warmup_steps
        step = jnp.asarray(count, jnp.float32)
        factor = jnp.where(step < warmup, step / max(warmup, 1), self.factor(jnp.maximum(step - warmup, 0.0)))
        return self.cfg.peak * factor

    @abc.abstractmethod
    def factor(self, step: Array) -> Array:
        """Returns the learning rate divided by the peak, `step` updates after the warm-up."""


class ConstantSchedule(Schedule):
    """Stays at the peak."""

    def factor(self, step: Array) -> Array:
        return jnp.ones_like(step)


class CosineSchedule(Schedule):
    """Falls along half a cosine.

    Reference: Loshchilov and Hutter, SGDR, 2017 (arXiv:1608.03983).
    """

    class Config(Schedule.Config):
        total_steps: int | None = None  # Where the schedule ends, warm-up included; None: with the run.
        final_ratio: float = 0.0  # The last learning rate divided by the peak.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._fall = _steps_after_warmup(self)

    def factor(self, step: Array) -> Array:
        progress = jnp.minimum(step / self._fall, 1.0)
        return _between(self.cfg.final_ratio, (1 + jnp.cos(jnp.pi * progress)) / 2)


class LinearSchedule(Schedule):
    """Falls along a straight line."""

    class Config(Schedule.Config):
        total_steps: int | None = None  # Where the schedule ends, warm-up included; None: with the run.
        final_ratio: float = 0.0  # The last learning rate divided by the peak.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._fall = _steps_after_warmup(self)

    def factor(self, step: Array) -> Array:
        return _between(self.cfg.final_ratio, 1 - jnp.minimum(step / self._fall, 1.0))


class WSDSchedule(Schedule):
    """Stays at the peak, and falls in the last `decay_steps`.

    References: Hu et al., MiniCPM, 2024 (arXiv:2404.06395); Hägele et al., Scaling Laws and Compute-Optimal Training
    Beyond Fixed Training Durations, 2024 (arXiv:2405.18392), for the decay by `1 - sqrt`.
    """

    class Config(Schedule.Config):
        total_steps: int | None = None  # Where the schedule ends, warm-up included; None: with the run.
        decay_steps: int = REQUIRED
        final_ratio: float = 0.0  # The last learning rate divided by the peak.
        decay: Literal["linear", "cosine", "1-sqrt"] = "linear"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        room = _steps_after_warmup(self)
        expect(self, "decay_steps", 1 <= cfg.decay_steps <= room, f"1 to {room}, the steps after the warm-up")
        self._stable = room - cfg.decay_steps

    def factor(self, step: Array) -> Array:
        cfg = self.cfg
        progress = jnp.clip((step - self._stable) / cfg.decay_steps, 0.0, 1.0)
        match cfg.decay:
            case "linear":
                left = 1 - progress
            case "cosine":
                left = (1 + jnp.cos(jnp.pi * progress)) / 2
            case _:
                left = 1 - jnp.sqrt(progress)
        return _between(cfg.final_ratio, left)


class InverseSqrtSchedule(Schedule):
    """Falls as `sqrt(timescale / (timescale + step))`, `step` counted from the end of the warm-up.

    With the default timescale this is `sqrt(warmup_steps / count)`, as in the Transformer and in T5.

    References: Vaswani et al., Attention Is All You Need, 2017 (arXiv:1706.03762); Zhai et al., Scaling Vision
    Transformers, 2022 (arXiv:2106.04560), for the timescale.
    """

    class Config(Schedule.Config):
        timescale: int | None = None  # None: as long as the warm-up.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if cfg.timescale is None:
            expect(self, "warmup_steps", cfg.warmup_steps >= 1, "at least 1, or else a timescale")
        else:
            expect(self, "timescale", cfg.timescale >= 1, "at least 1")

    def factor(self, step: Array) -> Array:
        timescale = self.cfg.timescale or self.cfg.warmup_steps
        return jnp.sqrt(timescale / (timescale + step))


def _steps_after_warmup(schedule: Any) -> int:
    """Returns how many steps are left for what follows the warm-up."""
    cfg = schedule.cfg
    expect(schedule, "final_ratio", 0 <= cfg.final_ratio <= 1, "0 to 1")
    if cfg.total_steps is not None:
        after = f"more than warmup_steps ({cfg.warmup_steps})"
        expect(schedule, "total_steps", cfg.total_steps > cfg.warmup_steps, after)
        return cfg.total_steps - cfg.warmup_steps
    if schedule._steps is None:
        raise ConfigError(
            f"{where(schedule)}: total_steps is not set, and there is no run to end with.\n"
            "  Set it, or build the learner with the steps of a run: cfg.build(specs=..., steps=...)."
        )
    return max(1, schedule._steps - cfg.warmup_steps)


def _between(final: float, left: Array) -> Array:
    return final + (1 - final) * left
