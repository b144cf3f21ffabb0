# SPDX-License-Identifier: Apache-2.0
"""Linear maps of experts whose weights are kept in few bits."""

from jax import Array

from dovetail.module import constant
from dovetail.ops import BlockedGroupedMatmul, GroupedMatmul, Quantised, row_groups

from .._quantised_linear import Bits, Dims, declare_quantised
from ._linear import GroupedLinear, grouped_product


class QuantisedGroupedLinear(GroupedLinear):
    """`QuantisedLinear` for experts.

    `replace_all(DenseGroupedLinear.Config, QuantisedGroupedLinear.Config(bits=8), drop=("init",))` takes over bias and
    kernel. Kernels other than `BlockedGroupedMatmul` are given a floating-point copy of all experts, made in each call.
    """

    class Config(GroupedLinear.Config):
        bits: Bits = 8
        group: int = 32  # With 4 bits: inputs that share a scale; fewer, if that does not divide in_dim.
        bias: bool = False
        kernel: GroupedMatmul.Config = BlockedGroupedMatmul.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._kernel: GroupedMatmul = cfg.kernel.build(path=f"{self.path}.kernel".removeprefix("."))
        outer, outs = Dims((cfg.num_experts,), ("expert",)), Dims((cfg.out_dim,), (cfg.out_axis,))
        declare_quantised(self, outer, Dims((cfg.in_dim,), (cfg.in_axis,)), outs, bits=cfg.bits, group=cfg.group)
        if cfg.bias:
            shape, axes = outer.shape + outs.shape, outer.axes + outs.axes
            self.param("bias", shape, axes=axes, init=constant(0.0), in_dims=(), out_dims=())

    def forward(self, x: Array, sizes: Array | None) -> Array:
        stored = Quantised(self.weight, self.scale, self.offset if self.cfg.bits == 4 else None)
        if sizes is None:
            y = grouped_product(self._kernel, x, stored.array(x.dtype), None)
            return y + self.bias[:, None] if self.cfg.bias else y
        y = stored.grouped_matmul(x, sizes, self._kernel)
        if not self.cfg.bias:
            return y
        return y + self.bias.at[row_groups(sizes, x.shape[0])].get(mode="fill", fill_value=0)
