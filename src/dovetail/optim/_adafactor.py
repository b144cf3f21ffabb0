# SPDX-License-Identifier: Apache-2.0
"""Adafactor: Adam's second moment from its row and column means, so that the state is far smaller than the model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from dovetail.module import ParamSpec

from ._checks import expect
from ._optimizer import Optimizer
from ._precision import expect_decay, kept_as


class Adafactor(Optimizer):
    """Adafactor, on each layer of a stack as if it were alone.

    The second moment of a parameter is factored along its two largest dimensions, and kept in float32: its decay tends
    to 1, which a narrower type cannot follow. With momentum, the learning rate applies after it, as in all optimizers
    here; optax applies it before.

    Reference: Shazeer and Stern, Adafactor, 2018 (arXiv:1804.04235).
    """

    class Config(Optimizer.Config):
        decay_exponent: float = 0.8  # In step t, the second moment decays by 1 - t**-decay_exponent.
        min_dim_size_to_factor: int = 128  # Parameters without two dimensions as large have a full second moment.
        clip_rms: float | None = 1.0  # The largest root-mean-square of a parameter's direction.
        multiply_by_parameter_scale: bool = True  # By the root-mean-square of the parameter, at least 0.001.
        momentum: float | None = None
        eps: float = 1e-30  # Added to squared gradients.
        mu_dtype: DTypeLike = jnp.float32  # Of the momentum.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        expect(self, "decay_exponent", 0 < cfg.decay_exponent <= 1, "more than 0 and at most 1")
        expect(self, "min_dim_size_to_factor", cfg.min_dim_size_to_factor >= 1, "at least 1")
        expect(self, "clip_rms", cfg.clip_rms is None or cfg.clip_rms > 0, "a positive number, or None")
        expect(self, "eps", cfg.eps > 0, "a positive number")
        if cfg.momentum is not None:
            expect_decay(self, "momentum", "mu_dtype")

    def transformation(self, specs: Any) -> optax.GradientTransformation:
        cfg = self.cfg
        steps = [
            optax.scale_by_factored_rms(
                decay_rate=cfg.decay_exponent, min_dim_size_to_factor=cfg.min_dim_size_to_factor, epsilon=cfg.eps
            )
        ]
        if cfg.clip_rms is not None:
            steps.append(optax.clip_by_block_rms(cfg.clip_rms))
        if cfg.multiply_by_parameter_scale:
            steps.append(optax.scale_by_param_block_rms())
        if cfg.momentum is not None:
            steps.append(optax.ema(cfg.momentum, debias=False))
        return kept_as(per_layer(optax.chain(*steps), specs), ema=cfg.mu_dtype)


def per_layer(make: optax.GradientTransformation, specs: Any) -> optax.GradientTransformation:
    """Returns the transformation as applied to each layer of stacked parameters on its own.

    Parameters are grouped by how they are stacked; what the state holds once, such as a count, it then holds once for
    each layer.
    """
    labels = jax.tree.map(_stack_label, specs)
    groups = {_stack_label(spec): spec.stack for spec in jax.tree.leaves(specs)}
    return optax.partition({label: _mapped(make, times) for label, times in groups.items()}, labels)


def _stack_label(spec: ParamSpec) -> str:
    return "x".join(map(str, spec.shape[: spec.stack])) + "_layers" if spec.stack else "single"


def _mapped(make: optax.GradientTransformation, times: int) -> optax.GradientTransformation:
    init: Callable[..., Any] = make.init
    update: Callable[..., Any] = make.update
    for _ in range(times):
        init, update = jax.vmap(init), jax.vmap(update)
    return optax.GradientTransformation(init, lambda updates, state, params=None: update(updates, state, params))
