# SPDX-License-Identifier: Apache-2.0
"""Value residual: every attention layer adds the values of the first one to its own.

Reference: Zhou et al., Value Residual Learning, 2024 (arXiv:2410.17897).

    dovetail train examples/value_residual.py:run
"""

from dovetail.config import modify
from dovetail.module import constant
from dovetail.nn import Attention, AttentionVariant, Context
from dovetail.zoo import recipe


class ValueResidual(AttentionVariant):
    """Values become `own * v + first * v_first`, with two learned numbers."""

    def __init__(self, cfg: AttentionVariant.Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("own", (), axes=(), init=constant(0.5))
        self.param("first", (), axes=(), init=constant(0.5))

    def heads(self, q, k, v, x, context: Context):
        first = context.get("value", v)
        self.publish("value", v, keep="first")
        return q, k, self.own * v + self.first * first


with_value_residual = modify(Attention.Config, lambda cfg: cfg.set(variant=ValueResidual.Config()))


def run():
    return with_value_residual(recipe("llama3-tiny"))
