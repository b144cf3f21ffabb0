# SPDX-License-Identifier: Apache-2.0
"""Optimizers: from gradients to a direction, by optax. The learner adds weight decay and the learning rate.

The dtype fields say how the state is kept; it is computed in float32.
"""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from dovetail.config import REQUIRED, Component, ConfigError, FunctionConfig

from ._checks import child_path, expect, where
from ._precision import expect_decay, kept_as


class Optimizer(Component, abc.ABC):
    """The interface: for parameters with these specs, an optax transformation of gradients to directions.

    A direction is what is multiplied by minus the learning rate to give the update.
    """

    class Config(Component.Config):
        keeps_defaults: ClassVar[bool] = True

    @abc.abstractmethod
    def transformation(self, specs: Any) -> optax.GradientTransformation:
        """Returns the transformation. `specs` is the tree of `dovetail.module.specs`."""

    def rates(self, specs: Any) -> Any:
        """Returns what the learning rate of each parameter is multiplied by, and with it its decay."""
        return jax.tree.map(lambda _: 1.0, specs)


class FromOptax(Optimizer):
    """Any transformation of optax, as in `FromOptax.Config(make=config_for(optax.scale_by_yogi, b2=0.99))`.

    It works on parameters as they are: where layers are stacked, it sees one array for all of them.
    """

    class Config(Optimizer.Config):
        # Without learning rate and its minus sign: optax.scale_by_adam, not optax.adam.
        make: FunctionConfig[Any] = REQUIRED

    def transformation(self, specs: Any) -> optax.GradientTransformation:
        made = self.cfg.make.build(path=child_path(self, "make"))
        if not isinstance(made, optax.GradientTransformation):
            raise ConfigError(f"{where(self)}: make gives {made!r}, expected an optax.GradientTransformation.")
        return kept_as(made)


class AdamW(Optimizer):
    """Adam; the weight decay of AdamW is the learner's.

    Reference: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019 (arXiv:1711.05101).
    """

    class Config(Optimizer.Config):
        b1: float = 0.9
        b2: float = 0.95
        eps: float = 1e-8
        nesterov: bool = False
        mu_dtype: DTypeLike = jnp.float32  # Of the mean of gradients.
        nu_dtype: DTypeLike = jnp.float32  # Of the mean of their squares.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        expect_decay(self, "b1", "mu_dtype")
        expect_decay(self, "b2", "nu_dtype")
        expect(self, "eps", cfg.eps >= 0, "at least 0")

    def transformation(self, specs: Any) -> optax.GradientTransformation:
        cfg = self.cfg
        adam = optax.scale_by_adam(cfg.b1, cfg.b2, cfg.eps, nesterov=cfg.nesterov)
        return kept_as(adam, mu=cfg.mu_dtype, nu=cfg.nu_dtype)


class Lion(Optimizer):
    """The sign of a mean of gradients. Wants a learning rate about 10 times smaller than Adam, and more decay.

    Reference: Chen et al., Symbolic Discovery of Optimization Algorithms, 2023 (arXiv:2302.06675).
    """

    class Config(Optimizer.Config):
        b1: float = 0.9  # Weight of the mean in the direction.
        b2: float = 0.99  # Decay of the mean.
        mu_dtype: DTypeLike = jnp.float32  # Of the mean.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        expect(self, "b1", 0 <= cfg.b1 < 1, "at least 0 and less than 1")
        expect_decay(self, "b2", "mu_dtype")

    def transformation(self, specs: Any) -> optax.GradientTransformation:
        return kept_as(optax.scale_by_lion(self.cfg.b1, self.cfg.b2), mu=self.cfg.mu_dtype)


class SGD(Optimizer):
    """Gradient descent, with momentum as `trace = gradient + momentum * trace`."""

    class Config(Optimizer.Config):
        momentum: float = 0.0
        nesterov: bool = False
        mu_dtype: DTypeLike = jnp.float32  # Of the trace.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        expect_decay(self, "momentum", "mu_dtype")
        expect(self, "nesterov", bool(cfg.momentum) or not cfg.nesterov, "False where momentum is 0")

    def transformation(self, specs: Any) -> optax.GradientTransformation:
        cfg = self.cfg
        trace = optax.trace(cfg.momentum, cfg.nesterov) if cfg.momentum else optax.identity()
        return kept_as(trace, trace=cfg.mu_dtype)
