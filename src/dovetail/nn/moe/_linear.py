# SPDX-License-Identifier: Apache-2.0
"""Linear maps of experts, a weight for each.

Shape letters: M rows, E experts, C rows of each expert, K inputs, N outputs.
"""

import abc

import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, FunctionConfig, config_for
from dovetail.module import Init, constant, variance_scaling
from dovetail.ops import BlockedGroupedMatmul, GroupedMatmul, row_groups

from .._linear import LinearMap


class GroupedLinear(LinearMap, abc.ABC):
    """The interface: a map for each expert, from `in_dim` to `out_dim`."""

    class Config(LinearMap.Config):
        num_experts: int = REQUIRED
        in_dim: int = REQUIRED
        out_dim: int = REQUIRED
        in_axis: str | None = REQUIRED  # Logical names, set with the dimensions.
        out_axis: str | None = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array, sizes: Array | None) -> Array:
        """Maps `[M, in_dim]`, rows sorted by expert, or `[E, C, in_dim]`; all but the last dimension stay.

        Args:
            sizes: `[E]`, how many rows each expert has; None: x has a dimension for the experts.
        """


def grouped_product(kernel: GroupedMatmul, x: Array, weight: Array, sizes: Array | None) -> Array:
    """Returns the rows of `x`, as `GroupedLinear` takes them, times the matrices of their experts, `[E, K, N]`."""
    return jnp.einsum("eci,eio->eco", x, weight) if sizes is None else kernel(x, weight, sizes)


class DenseGroupedLinear(GroupedLinear):
    """Multiplies by the weight of the expert, and adds its bias if there is one."""

    class Config(GroupedLinear.Config):
        bias: bool = False
        init: FunctionConfig[Init] = config_for(variance_scaling)
        kernel: GroupedMatmul.Config = BlockedGroupedMatmul.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._kernel: GroupedMatmul = cfg.kernel.build(path=f"{self.path}.kernel".removeprefix("."))
        shape, axes = (cfg.num_experts, cfg.in_dim, cfg.out_dim), ("expert", cfg.in_axis, cfg.out_axis)
        self.param("weight", shape, axes=axes, init=cfg.init.build())
        if cfg.bias:
            shape, axes = (cfg.num_experts, cfg.out_dim), ("expert", cfg.out_axis)
            self.param("bias", shape, axes=axes, init=constant(0.0), in_dims=(), out_dims=())

    def forward(self, x: Array, sizes: Array | None) -> Array:
        y = grouped_product(self._kernel, x, self.weight, sizes)
        if not self.cfg.bias:
            return y
        if sizes is None:
            return y + self.bias[:, None]
        return y + self.bias.at[row_groups(sizes, x.shape[0])].get(mode="fill", fill_value=0)
