# SPDX-License-Identifier: Apache-2.0
"""What attention layers have in common: the shapes of their heads, and of the maps to and from them."""

from typing import Protocol

from dovetail.config import ConfigError
from dovetail.module import Module

from ._linear import Linear


class _HasHeads(Protocol):
    """What the configs of attention layers have in common."""

    @property
    def dim(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int | None: ...
    @property
    def head_dim(self) -> int | None: ...


def check_positive(module: Module, cfg: "Module.Config | _HasHeads", *names: str) -> None:
    """Raises if one of these fields is a number below 1."""
    for name in names:
        value = getattr(cfg, name)
        if value is not None and value < 1:
            raise ConfigError(f"{module!r}: {name} is {value}, expected at least 1.")


def head_shapes(module: Module, cfg: "_HasHeads") -> tuple[int, int, int]:
    """Returns query heads, key heads and their dimension, from `dim`, `num_heads`, `num_kv_heads` and `head_dim`."""
    check_positive(module, cfg, "num_heads", "num_kv_heads", "head_dim")
    heads, kv_heads = cfg.num_heads, cfg.num_kv_heads or cfg.num_heads
    if heads % kv_heads:
        raise ConfigError(f"{module!r}: num_kv_heads ({kv_heads}) must divide num_heads ({heads}).")
    if cfg.head_dim is None and cfg.dim % heads:
        raise ConfigError(f"{module!r}: num_heads ({heads}) must divide dim ({cfg.dim}), or set head_dim.")
    return heads, kv_heads, cfg.head_dim or cfg.dim // heads


def to_heads(to: Linear.Config, dim: int, num_heads: int, width: int, *, axis: str = "heads") -> Linear.Config:
    """Returns the config of a map from the model to heads; `axis` is the logical name of the heads."""
    return to.set(in_shape=(dim,), in_axes=("embed",), out_shape=(num_heads, width), out_axes=(axis, "head_dim"))


def from_heads(to: Linear.Config, num_heads: int, width: int, dim: int) -> Linear.Config:
    """Returns the config of a map from heads back to the model."""
    return to.set(in_shape=(num_heads, width), in_axes=("heads", "head_dim"), out_shape=(dim,), out_axes=("embed",))
