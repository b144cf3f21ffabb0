# SPDX-License-Identifier: Apache-2.0
"""Loops over layers for the tests of `dovetail.module`, which has `repeat` but no layers: `dovetail.nn` has those."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED
from dovetail.module import Loop, Module, Published, after, repeat


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """As little as a loop wants of a context, and what a test tells its layers."""

    given: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    shared: Mapping[str, Published] = dataclasses.field(default_factory=dict[str, Published])

    def sharing(self, shared: Mapping[str, Published]) -> Self:
        """Returns the same with other publications."""
        return dataclasses.replace(self, shared=dict(shared))

    def later(self, published: Mapping[str, Published]) -> Self:
        """Returns the context of what comes after those that published."""
        return self.sharing(after(self.shared, published))

    def get(self, name: str, otherwise: Any) -> Any:
        """Returns what has been published, or `otherwise` as long as there is nothing."""
        return self.shared[name].otherwise(otherwise) if name in self.shared else otherwise


class Repeat(Module):
    """The same layer, or a few in turn, many times."""

    class Config(Module.Config):
        layer: Module.Config | tuple[Module.Config, ...] = REQUIRED
        num_repeats: int = REQUIRED
        loop: Loop = "scan"

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if isinstance(cfg.layer, tuple):
            layers = {f"layer[{i}]": layer for i, layer in enumerate(cfg.layer)}
        else:
            layers = {"layer": cfg.layer}
        self.layers = [self.child(name, layer, stack=cfg.num_repeats) for name, layer in layers.items()]

    def forward(self, x: Array, context: Any = None) -> Array:
        return repeat(self, self.layers, self.cfg.num_repeats, self.cfg.loop, x, context or Context())


class Sequence(Module):
    """Layers one after the other, without a loop of ours."""

    class Config(Module.Config):
        layers: Ordered[Module.Config] = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.layers = [self.child(f"layers[{i}]", layer) for i, layer in enumerate(cfg.layers)]

    def forward(self, x: Array, context: Any = None) -> Array:
        context = context or Context()
        for layer in self.layers:
            x = layer(x, context.later(self.published))
        return x


class Remembering(Module):
    """Adds what the first layer and the one before it were given, and publishes what it is given itself."""

    class Config(Module.Config):
        dim: int = 4

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (cfg.dim, cfg.dim), axes=(None, None))

    def forward(self, x: Array, context: Context) -> Array:
        first, last = context.get("first", x), context.get("last", jnp.zeros_like(x))
        self.publish("first", x, keep="first")
        self.publish("last", x)
        return jnp.tanh(x @ self.weight) + first - 0.5 * last


class Counting(Module):
    """Publishes whole numbers."""

    def forward(self, x: Array, context: Context) -> Array:
        self.publish("count", jnp.ones(x.shape[:1], jnp.int32))
        return x


class Plain(Module):
    """A module that wants no context, as a layer."""

    class Config(Module.Config):
        inner: Module.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner)

    def forward(self, x: Array, context: Any) -> Array:
        return self.inner(x)
