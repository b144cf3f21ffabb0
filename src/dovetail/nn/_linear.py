# SPDX-License-Identifier: Apache-2.0
"""Linear maps, from some of the last dimensions of an array to others."""

import abc
import math

from jax import Array

from dovetail.config import REQUIRED, FunctionConfig, config_for
from dovetail.module import Init, Module, ModuleError, constant, variance_scaling


class LinearMap(Module, abc.ABC):
    """What multiplies by weights: a `Linear` every row by the same, a `GroupedLinear` each by those of its expert."""


class Linear(LinearMap, abc.ABC):
    """The interface: a map from `in_shape` to `out_shape`, such as `(dim,)` to `(heads, head_dim)`."""

    class Config(LinearMap.Config):
        in_shape: tuple[int, ...] = REQUIRED
        out_shape: tuple[int, ...] = REQUIRED
        in_axes: tuple[str | None, ...] = REQUIRED  # Logical names, set with the shapes.
        out_axes: tuple[str | None, ...] = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array) -> Array:
        """Maps `[*B, *in_shape]` to `[*B, *out_shape]`."""

    @abc.abstractmethod
    def matrix(self) -> Array:
        """Returns the map as an array `[*in_shape, *out_shape]`, for who multiplies in another order."""


class WeightLinear(Linear, abc.ABC):
    """What maps by a weight share, with a bias if there is one; they differ in how the product is computed."""

    class Config(Linear.Config):
        bias: bool = False
        init: FunctionConfig[Init] = config_for(variance_scaling)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        num_in, num_out = len(cfg.in_shape), len(cfg.out_shape)
        self.param(
            "weight",
            cfg.in_shape + cfg.out_shape,
            axes=cfg.in_axes + cfg.out_axes,
            init=cfg.init.build(),
            in_dims=tuple(range(-num_in - num_out, -num_out)),
            out_dims=tuple(range(-num_out, 0)),
        )
        if cfg.bias:
            self.param("bias", cfg.out_shape, axes=cfg.out_axes, init=constant(0.0), in_dims=(), out_dims=())

    def forward(self, x: Array) -> Array:
        cfg = self.cfg
        # As a product of two matrices: gradients with more dimensions would be transposed once more.
        flat = self.weight.reshape(math.prod(cfg.in_shape), -1)
        batch = x.shape[: x.ndim - len(cfg.in_shape)]
        y = self._product(x.reshape(*batch, -1), flat).reshape(*batch, *cfg.out_shape)
        return y + self.bias if self.cfg.bias else y

    def matrix(self) -> Array:
        if self.cfg.bias:
            raise ModuleError(f"{self!r} is asked for its matrix, but it also adds a bias. Set bias=False.")
        return self.weight

    @abc.abstractmethod
    def _product(self, x: Array, weight: Array) -> Array:
        """Maps `[*B, K]` and `[K, N]` to `[*B, N]`."""


class DenseLinear(WeightLinear):
    """Multiplies by a weight, and adds a bias if there is one."""

    def _product(self, x: Array, weight: Array) -> Array:
        return x @ weight
