# SPDX-License-Identifier: Apache-2.0
"""Linear maps computed with fewer bits."""

from jax import Array

from dovetail.ops import Rounded, float8_matmul, int8_matmul

from ._linear import WeightLinear


class Int8Linear(WeightLinear):
    """A `DenseLinear` whose products are of 8-bit integers. Parameters stay as they are; `matrix` is not rounded.

    `replace_all(DenseLinear.Config, Int8Linear.Config())` takes over bias and initial values.
    """

    class Config(WeightLinear.Config):
        # Which are such products too. By the estimates of their compiler, TPUs gain little from that of the weights.
        gradients: Rounded = "inputs"

    def _product(self, x: Array, weight: Array) -> Array:
        return int8_matmul(x.reshape(-1, x.shape[-1]), weight, gradients=self.cfg.gradients).reshape(*x.shape[:-1], -1)


class Float8Linear(WeightLinear):
    """A `DenseLinear` whose products are of 8-bit floating point. Parameters stay as they are; `matrix` is not rounded.

    `replace_all(DenseLinear.Config, Float8Linear.Config())` takes over bias and initial values.
    """

    class Config(WeightLinear.Config):
        gradients: Rounded = "all"  # Which are such products too.

    def _product(self, x: Array, weight: Array) -> Array:
        y = float8_matmul(x.reshape(-1, x.shape[-1]), weight, gradients=self.cfg.gradients)
        return y.reshape(*x.shape[:-1], -1)
