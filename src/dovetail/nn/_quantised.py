# SPDX-License-Identifier: Apache-2.0
"""Linear maps computed with fewer bits."""

from jax import Array

from dovetail.ops import int8_matmul

from ._linear import WeightLinear


class Int8Linear(WeightLinear):
    """A `DenseLinear` whose product is one of 8-bit integers; parameters and gradients are as exact as there.

    `replace_all(DenseLinear.Config, Int8Linear.Config())` takes over bias and initial values. `matrix` is not rounded.
    """

    def _product(self, x: Array, weight: Array) -> Array:
        return int8_matmul(x.reshape(-1, x.shape[-1]), weight).reshape(*x.shape[:-1], -1)
