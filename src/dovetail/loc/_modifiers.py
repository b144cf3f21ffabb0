# SPDX-License-Identifier: Apache-2.0
"""Six features as a user writes them: functions from config to config. The growth harness counts these lines.

Each takes the config of a model and a variant of the feature, and knows neither models nor variants.
"""

from typing import Any

from dovetail.config import config_for, modify, replace_all
from dovetail.nn import (
    Attention,
    DenseExperts,
    DenseFeedForward,
    DenseLinear,
    FrequencyRotary,
    GatedExperts,
    GatedFeedForward,
    Linear,
    Norm,
)
from dovetail.ops import gated


def rope(cfg: Any, new: Any) -> Any:
    """Another rotary in place of every one."""
    return replace_all(FrequencyRotary.Config, new, missing="ok")(cfg)


def moe(cfg: Any, new: Any) -> Any:
    """Experts in place of every dense feed-forward, of its size and with its activation."""

    def gated_ones(old: Any) -> Any:
        return new.set(experts=GatedExperts.Config(activation=config_for(gated, old.activation))).inherit(old)

    def plain_ones(old: Any) -> Any:
        return new.set(experts=DenseExperts.Config(activation=old.activation)).inherit(old)

    kinds = {GatedFeedForward.Config: gated_ones, DenseFeedForward.Config: plain_ones}
    return replace_all(kinds, at="*.ffn", missing="ok")(cfg)


def norm(cfg: Any, new: Any) -> Any:
    """Another norm in place of every one."""
    return replace_all(Norm.Config, new)(cfg)


def attention(cfg: Any, fields: Any) -> Any:
    """Attention of another kind everywhere."""
    return modify(Attention.Config, lambda old: old.set(**fields), missing="ok")(cfg)


def lora(cfg: Any, new: Any) -> Any:
    """An adapter around every linear map."""
    return replace_all(Linear.Config, lambda old: new.set(inner=old))(cfg)


def quantised(cfg: Any, variant: Any) -> Any:
    """Products of fewer bits at the places that a pattern names."""
    at, new = variant
    return replace_all(DenseLinear.Config, new, at=at, missing="ok")(cfg)
