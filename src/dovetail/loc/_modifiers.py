# SPDX-License-Identifier: Apache-2.0
"""Six features as a user writes them: functions from config to config. The growth harness counts these lines.

Each takes the config of a model and a variant of the feature, and knows neither models nor variants.
"""

from typing import Any

from dovetail.config import ConfigBase, modify, replace_all
from dovetail.nn import (
    Attention,
    DenseFeedForward,
    DenseLinear,
    FrequencyRotary,
    GatedFeedForward,
    GroupedLinear,
    Linear,
    LoRAGroupedLinear,
    Norm,
)


def rope(cfg: ConfigBase, new: Any) -> ConfigBase:
    """Another rotary in place of every one, without what only the old one had."""
    return replace_all(FrequencyRotary.Config, new, drop="unplaced", missing="ok")(cfg)


def moe(cfg: ConfigBase, new: Any) -> ConfigBase:
    """Experts in place of every dense feed-forward, with its activation, biases and initial values."""

    kinds = {GatedFeedForward.Config: new, DenseFeedForward.Config: new}
    return replace_all(kinds, at="*.ffn", missing="ok")(cfg)


def norm(cfg: ConfigBase, new: Any) -> ConfigBase:
    """Another norm in place of every one, without what only the old one had."""
    return replace_all(Norm.Config, new, drop="unplaced")(cfg)


def attention(cfg: ConfigBase, fields: Any) -> ConfigBase:
    """Attention of another kind everywhere."""
    return modify(Attention.Config, lambda old: old.set(**fields), missing="ok")(cfg)


def lora(cfg: ConfigBase, new: Any) -> ConfigBase:
    """An adapter around every linear map, those of experts too."""
    of_experts = LoRAGroupedLinear.Config(rank=new.rank, alpha=new.alpha)
    kinds = {Linear.Config: lambda old: new.set(inner=old), GroupedLinear.Config: lambda old: of_experts.set(inner=old)}
    return replace_all(kinds, missing="ok")(cfg)


def quantised(cfg: ConfigBase, variant: Any) -> ConfigBase:
    """Products of fewer bits at the places that a pattern names."""
    at, new = variant
    return replace_all(DenseLinear.Config, new, at=at, missing="ok")(cfg)
