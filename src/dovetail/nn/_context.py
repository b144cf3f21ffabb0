# SPDX-License-Identifier: Apache-2.0
"""The context of a layer: what it is told besides the activations that it changes.

Shape letters: B batch, T time.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax
from jax import Array

from dovetail.module import ModuleError, Published, after
from dovetail.ops import Mask, Tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """What all layers of a model are told. It goes with the activations through loops, remat and pipelines."""

    tokens: Tokens  # Place and document of each token, for masks.
    positions: Array  # `[B or 1, T]`, counted from the start of the document.
    mask: Mask = dataclasses.field(metadata={"static": True})  # What all layers obey; a layer may see less.
    ids: Array | None = None  # `[B, T]`, where the input is made of tokens.
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])  # By the model: memory, condition, ...
    shared: Mapping[str, Published] = dataclasses.field(default_factory=dict[str, Published])  # By layers before.

    def set(self, **changes: Any) -> Self:
        """Returns a copy with other values, as for a layer that reads some of the tokens."""
        return dataclasses.replace(self, **changes)

    def sharing(self, shared: Mapping[str, Published]) -> Self:
        """Returns the same with other publications."""
        return self.set(shared=dict(shared))

    def later(self, published: Mapping[str, Published]) -> Self:
        """Returns the context of layers that come after those that published; see `Module.published`."""
        return self.sharing(after(self.shared, published)) if published else self

    def need(self, name: str) -> Any:
        """Returns what the model gives, or a layer before has published, under this name; there must be something."""
        if name in self.given:
            return self.given[name]
        if name in self.shared:
            return self.shared[name].value
        raise ModuleError(
            f"the context has no {name!r}. The model gives {sorted(self.given) or 'nothing'}, and layers before have\n"
            f"  published {sorted(self.shared) or 'nothing'}.\n"
            f"  The model can give it, model(..., given={{{name!r}: ...}}), or a layer before this can publish it,\n"
            f"  self.publish({name!r}, ...). A layer that may be the first asks by context.get({name!r}, otherwise)."
        )

    def get(self, name: str, otherwise: Any) -> Any:
        """Returns what there is under this name, or `otherwise`, of the same shapes, as long as there is nothing."""
        if name in self.given:
            return self.given[name]
        return self.shared[name].otherwise(otherwise) if name in self.shared else otherwise
