# SPDX-License-Identifier: Apache-2.0
"""Positions that act on queries and keys."""

import abc

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from dovetail.config import REQUIRED, ConfigError, fields_of
from dovetail.module import Module
from dovetail.ops import (
    EMPTY,
    llama3_frequencies,
    longrope_frequencies,
    longrope_magnitude,
    ntk_frequencies,
    rotary_frequencies,
    rotate,
    yarn_frequencies,
    yarn_magnitude,
)


class Rotary(Module, abc.ABC):
    """The interface: changes queries and keys by their positions, so that scores depend on their distance."""

    class Config(Module.Config):
        head_dim: int = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array, positions: Array) -> Array:
        """Maps `[B, T, H, head_dim]` and positions `[B or 1, T]` to the shape and dtype of `x`."""


class NoRotary(Rotary):
    """Leaves queries and keys as they are."""

    def forward(self, x: Array, positions: Array) -> Array:
        return x


class FrequencyRotary(Rotary, abc.ABC):
    """What all rotary position embeddings share; they differ in their frequencies."""

    class Config(Rotary.Config):
        theta: float = 10_000.0
        interleaved: bool = False  # Pairs are neighbours, not halves of the head: as in DeepSeek checkpoints.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.head_dim % 2:
            raise ConfigError(f"{self!r}: head_dim is {cfg.head_dim}, expected an even number.")
        for name in {"theta", "factor", "original_length"} & set(fields_of(cfg)):
            if getattr(cfg, name) <= 0:
                raise ConfigError(f"{self!r}: {name} is {getattr(cfg, name)}, expected a number above 0.")

    def forward(self, x: Array, positions: Array) -> Array:
        frequencies, magnitude = self._frequencies(positions)
        return rotate(x, positions, frequencies, magnitude=magnitude, interleaved=self.cfg.interleaved)

    @abc.abstractmethod
    def _frequencies(self, positions: Array) -> tuple[ArrayLike, float]:
        """Returns what `rotate` takes: frequencies, and a factor of the result."""


class RoPE(FrequencyRotary):
    """Rotary position embedding."""

    def _frequencies(self, positions: Array) -> tuple[ArrayLike, float]:
        return rotary_frequencies(self.cfg.head_dim, self.cfg.theta), 1.0


class LinearRoPE(FrequencyRotary):
    """All frequencies divided by `factor`: positions come as close as in sequences that much shorter.

    Reference: Chen et al., Extending Context Window of Large Language Models via Positional Interpolation, 2023
    (arXiv:2306.15595).
    """

    class Config(FrequencyRotary.Config):
        factor: float = REQUIRED

    def _frequencies(self, positions: Array) -> tuple[ArrayLike, float]:
        return rotary_frequencies(self.cfg.head_dim, self.cfg.theta) / self.cfg.factor, 1.0


class DynamicRoPE(FrequencyRotary):
    """Frequencies that fall as a row grows beyond `original_length`, the lowest ones most.

    Up to there it is `RoPE`. Beyond, they follow the largest position of the row in this call, so what a cache holds
    was turned by earlier frequencies, and packed documents share those of the longest.
    """

    class Config(FrequencyRotary.Config):
        factor: float = REQUIRED
        original_length: int = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.head_dim < 4:
            raise ConfigError(f"{self!r}: head_dim is {cfg.head_dim}, expected at least 4.")

    def _frequencies(self, positions: Array) -> tuple[ArrayLike, float]:
        cfg = self.cfg
        excess = jnp.maximum(_lengths(positions) / cfg.original_length - 1, 0).astype(jnp.float32)
        return ntk_frequencies(cfg.head_dim, cfg.theta, (1 + cfg.factor * excess)[:, None, None, None]), 1.0


class Llama3RoPE(FrequencyRotary):
    """Low frequencies divided by `factor`, high ones as they are."""

    class Config(FrequencyRotary.Config):
        factor: float = 8.0
        original_length: int = 8192  # Of the sequences before.
        low: float = 1.0  # Turns within original_length, below which a frequency is low, ...
        high: float = 4.0  # ... and above which it is high.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.low >= cfg.high:
            raise ConfigError(f"{self!r}: low ({cfg.low}) must be less than high ({cfg.high}).")

    def _frequencies(self, positions: Array) -> tuple[ArrayLike, float]:
        cfg = self.cfg
        numbers = {"factor": cfg.factor, "low": cfg.low, "high": cfg.high, "original_length": cfg.original_length}
        return llama3_frequencies(cfg.head_dim, cfg.theta, **numbers), 1.0


class YaRN(FrequencyRotary):
    """Low frequencies divided by `factor`, high ones as they are, and larger queries and keys."""

    class Config(FrequencyRotary.Config):
        factor: float = REQUIRED
        original_length: int = REQUIRED  # Of the sequences before.
        slow: float = 1.0  # Turns within original_length, below which a frequency is low (beta_slow), ...
        fast: float = 32.0  # ... and above which it is high (beta_fast).
        truncate: bool = True  # The ramp between them starts and ends at whole numbers.
        mscale: float = 1.0  # Queries and keys are multiplied by `yarn_magnitude(factor, mscale)`, ...
        mscale_all_dim: float = 0.0  # ... divided by that of this number.
        magnitude: float | None = None  # What they are multiplied by, whatever the two above say.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.slow >= cfg.fast:
            raise ConfigError(f"{self!r}: slow ({cfg.slow}) must be less than fast ({cfg.fast}).")

    def _frequencies(self, positions: Array) -> tuple[ArrayLike, float]:
        cfg = self.cfg
        frequencies = yarn_frequencies(
            cfg.head_dim,
            cfg.theta,
            factor=cfg.factor,
            slow=cfg.slow,
            fast=cfg.fast,
            original_length=cfg.original_length,
            truncate=cfg.truncate,
        )
        if cfg.magnitude is not None:
            return frequencies, cfg.magnitude
        return frequencies, yarn_magnitude(cfg.factor, cfg.mscale) / yarn_magnitude(cfg.factor, cfg.mscale_all_dim)


class LongRoPE(FrequencyRotary):
    """Each frequency divided by a number of its own, and larger queries and keys.

    There are two lists of numbers, for rows up to `original_length` and for longer ones. Which one applies follows the
    largest position of the row in this call, so what a cache holds may have been turned by the other.
    """

    class Config(FrequencyRotary.Config):
        factor: float = REQUIRED  # Of how much longer sequences have become.
        original_length: int = REQUIRED  # Of the sequences before.
        short: tuple[float, ...] = REQUIRED  # As many as there are frequencies: head_dim / 2.
        long: tuple[float, ...] = REQUIRED
        magnitude: float | None = None  # Of queries and keys; None: `longrope_magnitude` of factor and length.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        for name in ("short", "long"):
            numbers = getattr(cfg, name)
            if len(numbers) != cfg.head_dim // 2 or min(numbers) <= 0:
                raise ConfigError(
                    f"{self!r}: {name} is {numbers}, expected {cfg.head_dim // 2} numbers above 0, half of head_dim."
                )

    def _frequencies(self, positions: Array) -> tuple[ArrayLike, float]:
        cfg = self.cfg
        short, long = (longrope_frequencies(cfg.head_dim, cfg.theta, each) for each in (cfg.short, cfg.long))
        is_long = (_lengths(positions) > cfg.original_length)[:, None, None, None]
        magnitude = longrope_magnitude(cfg.factor, cfg.original_length) if cfg.magnitude is None else cfg.magnitude
        return jnp.where(is_long, jnp.asarray(long, jnp.float32), jnp.asarray(short, jnp.float32)), magnitude


class PartialRotary(Rotary):
    """Turns the first dimensions of each head and leaves the others."""

    class Config(Rotary.Config):
        fraction: float = 0.5  # Of head_dim.
        inner: Rotary.Config = RoPE.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if not 0 < cfg.fraction <= 1:
            raise ConfigError(f"{self!r}: fraction is {cfg.fraction}, expected more than 0 and at most 1.")
        self._turned = int(cfg.head_dim * cfg.fraction)
        self.inner = self.child("inner", cfg.inner.set(head_dim=self._turned))

    def forward(self, x: Array, positions: Array) -> Array:
        turned = self.inner(x[..., : self._turned], positions)
        return jnp.concatenate([turned, x[..., self._turned :]], axis=-1)


def _lengths(positions: Array) -> Array:
    """Returns one more than the largest position of each row, `[B]`, padding apart."""
    return 1 + jnp.max(jnp.where(positions == EMPTY, 0, positions), axis=1)
