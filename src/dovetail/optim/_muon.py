# SPDX-License-Identifier: Apache-2.0
"""Muon: hidden matrices move along orthogonalised momentum, the other parameters by another optimizer."""

import math
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from dovetail.config import ConfigError
from dovetail.module import ParamSpec

from ._checks import child_path, expect, where
from ._groups import by_path, is_hidden_matrix
from ._optimizer import AdamW, Optimizer
from ._precision import expect_decay, kept_as


class Muon(Optimizer):
    """Muon for hidden matrices, which it knows by their specs; `rest` for norms, biases, embeddings, output layer.

    Layers of a stack, and experts, are orthogonalised each on its own. With `rms`, a direction is scaled by
    `rms * sqrt(max(fan_in, fan_out))`, so that it is as large as one of Adam and both share a learning rate; without,
    by `sqrt(max(1, fan_out / fan_in))`.

    References: Jordan, Muon, 2024 (kellerjordan.github.io/posts/muon); Liu et al., Muon is Scalable for LLM Training,
    2025 (arXiv:2502.16982), for `rms`.
    """

    class Config(Optimizer.Config):
        momentum: float = 0.95
        nesterov: bool = True
        num_iterations: int = 5  # Of Newton-Schulz.
        coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)  # Of Newton-Schulz: x, x^3, x^5.
        eps: float = 1e-8  # Added to the norm that a matrix is divided by first.
        rms: float | None = 0.2
        mu_dtype: DTypeLike = jnp.float32  # Of the momentum.
        rest: Optimizer.Config = AdamW.Config()
        rest_ratio: float = 1.0  # Learning rate of the rest, decay included, divided by that of the matrices.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        expect_decay(self, "momentum", "mu_dtype")
        expect(self, "num_iterations", cfg.num_iterations >= 1, "at least 1")
        expect(self, "eps", cfg.eps > 0, "a positive number")
        expect(self, "rms", cfg.rms is None or 0 < cfg.rms < math.inf, "a positive number, or None")
        expect(self, "rest_ratio", 0 <= cfg.rest_ratio < math.inf, "at least 0")
        self.rest: Optimizer = cfg.rest.build(path=child_path(self, "rest"))

    def transformation(self, specs: Any) -> optax.GradientTransformation:
        cfg = self.cfg
        if not any(map(is_hidden_matrix, jax.tree.leaves(specs))):
            raise ConfigError(
                f"{where(self)}: none of the {len(by_path(specs))} parameters is a matrix between hidden activations.\n"
                "  Use another optimizer, or declare in_dims and out_dims of the parameters."
            )
        momentum = scale_by_muon(
            cfg.coefficients,
            cfg.num_iterations,
            cfg.momentum,
            cfg.eps,
            nesterov=cfg.nesterov,
            weight_dimension_numbers=_picked(specs, lambda spec: MuonDimensionNumbers(spec.in_dims, spec.out_dims)),
        )
        factors = _picked(specs, self._factor)
        scale = optax.stateless(lambda updates, _: jax.tree.map(lambda u, factor: u * factor, updates, factors))
        others = jax.tree.map(lambda spec: optax.MaskedNode() if is_hidden_matrix(spec) else spec, specs)
        groups: dict[Hashable, optax.GradientTransformation] = {
            "matrices": optax.chain(kept_as(momentum, mu=cfg.mu_dtype), scale),
            "rest": self.rest.transformation(others),
        }
        labels = jax.tree.map(lambda spec: "matrices" if is_hidden_matrix(spec) else "rest", specs)
        return optax.partition(groups, labels)

    def rates(self, specs: Any) -> Any:
        rest, ratio = self.rest.rates(specs), self.cfg.rest_ratio
        return jax.tree.map(lambda spec, rate: 1.0 if is_hidden_matrix(spec) else ratio * rate, specs, rest)

    def _factor(self, spec: ParamSpec) -> float:
        if self.cfg.rms is None:
            return math.sqrt(max(1.0, spec.fan_out / spec.fan_in))
        return self.cfg.rms * math.sqrt(max(spec.fan_in, spec.fan_out))


def _picked(specs: Any, value: Any) -> Any:
    """Returns `value(spec)` for hidden matrices, and for the others what optax puts in place of them."""
    return jax.tree.map(lambda spec: value(spec) if is_hidden_matrix(spec) else optax.MaskedNode(), specs)
