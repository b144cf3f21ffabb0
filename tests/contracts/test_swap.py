# SPDX-License-Identifier: Apache-2.0
"""What takes the place of a layer of a recipe keeps what was set there, or says what it has no place for."""

from typing import Any

import pytest
from jax import Array

from dovetail.config import REQUIRED, ConfigError, find, replace_all
from dovetail.nn import (
    Attention,
    Context,
    GroupedLinear,
    Linear,
    LoRAGroupedLinear,
    LoRALinear,
    Mixer,
    RMSNorm,
    RoPE,
    Rotary,
)
from dovetail.zoo import model


class Bare(Mixer):
    """An attention as one writes it first, with the number of heads alone."""

    class Config(Mixer.Config):
        num_heads: int = REQUIRED

    def forward(self, x: Array, context: Context) -> Array:
        return x


class Full(Mixer):
    """One with the fields that the recipes below set."""

    class Config(Mixer.Config):
        num_heads: int = REQUIRED
        num_kv_heads: int | None = None
        head_dim: int | None = None
        window: int | None = None
        scale: float | None = None
        soft_cap: float | None = None
        query_norm: RMSNorm.Config | None = None
        key_norm: RMSNorm.Config | None = None
        rotary: Rotary.Config = RoPE.Config()

    def forward(self, x: Array, context: Context) -> Array:
        return x


LOST = {
    "qwen3-moe-tiny": ("num_kv_heads", "head_dim", "query_norm", "key_norm", "rotary"),
    "gemma2-tiny": ("num_kv_heads", "head_dim", "window", "scale", "soft_cap"),
}


@pytest.mark.parametrize("name", LOST)
def test_attention_with_a_place_for_them_keeps_heads_norms_rotary_window_scale_and_cap(name):
    before = model(name)
    after = replace_all(Attention.Config, Full.Config())(before)
    kept = ("num_heads", *LOST[name])
    for path, old in find(before, Attention.Config):
        assert [getattr(after.get_in(path), field) for field in kept] == [getattr(old, field) for field in kept]


@pytest.mark.parametrize("name", LOST)
def test_attention_without_a_place_for_them_is_an_error_that_names_each_and_the_way_out(name):
    before = model(name)
    with pytest.raises(ConfigError) as e:
        replace_all(Attention.Config, Bare.Config())(before)
    path, old = find(before, Attention.Config)[0]
    lines = str(e.value).splitlines()
    assert lines[0] == f"{path}: Bare.Config has no place for what was set in Attention.Config:"
    assert {line.split()[0] for line in lines if line.startswith("    ")} == set(LOST[name])
    assert f"    num_kv_heads = {old.num_kv_heads}" in lines
    after = replace_all(Attention.Config, Bare.Config(), drop=LOST[name])(before)
    assert after.get_in(path) == Bare.Config(num_heads=old.num_heads)


def test_adapters_of_linear_maps_alone_leave_experts_and_the_report_names_them():
    cfg = model("qwen3-moe-tiny")
    linear: dict[Any, Any] = {Linear.Config: lambda old: LoRALinear.Config(inner=old)}
    left = replace_all(linear).report(cfg).left_alone
    assert [node.path for node in left] == [f"stack.layer.ffn.{name}" for name in ("gate", "up", "down")]
    experts: dict[Any, Any] = {GroupedLinear.Config: lambda old: LoRAGroupedLinear.Config(inner=old)}
    assert replace_all({**linear, **experts}).report(cfg).left_alone == ()
