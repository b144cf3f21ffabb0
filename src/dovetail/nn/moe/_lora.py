# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of experts."""

from jax import Array

from dovetail.config import ConfigError
from dovetail.module import constant
from dovetail.ops import BlockedGroupedMatmul, GroupedMatmul

from ._linear import DenseGroupedLinear, GroupedLinear, grouped_product


class LoRAGroupedLinear(GroupedLinear):
    """`LoRALinear` for experts: adds to another map, for each expert, a product of two thin matrices of its own.

    `lora_b` starts at zero: a new adapter changes nothing.
    """

    class Config(GroupedLinear.Config):
        rank: int = 8
        alpha: float = 16.0
        inner: GroupedLinear.Config = DenseGroupedLinear.Config()
        kernel: GroupedMatmul.Config = BlockedGroupedMatmul.Config()  # Of the products with the thin matrices.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.rank < 1:
            raise ConfigError(f"{self!r}: rank is {cfg.rank}, expected at least 1.")
        self._kernel: GroupedMatmul = cfg.kernel.build(path=f"{self.path}.kernel".removeprefix("."))
        ends = {"in_dim": cfg.in_dim, "in_axis": cfg.in_axis, "out_dim": cfg.out_dim, "out_axis": cfg.out_axis}
        self.inner = self.child("inner", cfg.inner.set(num_experts=cfg.num_experts, **ends))
        self.param("lora_a", (cfg.num_experts, cfg.in_dim, cfg.rank), axes=("expert", cfg.in_axis, None))
        zeros, shape = constant(0.0), (cfg.num_experts, cfg.rank, cfg.out_dim)
        self.param("lora_b", shape, axes=("expert", None, cfg.out_axis), init=zeros)

    def forward(self, x: Array, sizes: Array | None) -> Array:
        if not self.enabled("lora"):
            return self.inner(x, sizes)
        narrow = grouped_product(self._kernel, x, self.lora_a, sizes)
        added = grouped_product(self._kernel, narrow, self.lora_b, sizes)
        return self.inner(x, sizes) + added * (self.cfg.alpha / self.cfg.rank)
