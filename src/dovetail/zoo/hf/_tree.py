# SPDX-License-Identifier: Apache-2.0
"""A model's config as tables of fields see it: the model, and its layers one by one, whatever stack they are in."""

from collections.abc import Sequence
from typing import Any

from dovetail.config import ConfigBase, ConfigError, fields_of
from dovetail.models import CausalLM
from dovetail.nn import Layer, layers_of, stack_of

_LAYER = "layer."


class PerLayer(tuple[Any, ...]):
    """A value for each layer."""


class Tree:
    """Paths begin at the model, `norm.eps`, or at its layers: `layer.mixer.window` is that field of each layer.

    `layer.mixer:Mamba2.head_dim` is that of mixers of this class alone. Layers without the field are passed over.
    """

    def __init__(self, model: CausalLM.Config) -> None:
        self.model = model
        self.layers = [place.layer for place in layers_of(model.stack)]
        self.kinds: Sequence[Layer.Config] = tuple(self.layers)  # A layer of each kind, to choose parts from.

    def config(self) -> CausalLM.Config:
        """Returns the config, its layers in a stack that has as few to compile as possible."""
        return self.model.set(stack=stack_of(self.layers))

    def set(self, path: str, value: Any) -> None:
        """Sets a field, of all layers if the path says so."""
        if not path.startswith(_LAYER):
            self.model = self.model.set_in(path, value)
            return
        values = value if isinstance(value, PerLayer) else (value,) * len(self.layers)
        for i, (layer, each) in enumerate(zip(self.layers, values, strict=True)):
            if (place := _place(layer, path)) is not None:
                self.layers[i] = layer.set_in(place, each)

    def has(self, path: str) -> bool:
        """Whether the model, or a layer, has a field."""
        return bool(self.values(path)) if path.startswith(_LAYER) else _place(self.model, f"model.{path}") is not None

    def counts(self, path: str) -> bool:
        """Whether a field is a whole number."""
        of_layers = path.startswith(_LAYER)
        for part in self.layers if of_layers else [self.model]:
            if (place := _place(part, path if of_layers else f"model.{path}")) is not None:
                owner, _, name = place.rpartition(".")
                return fields_of(part.get_in(owner) if owner else part)[name] in (int, int | None)
        return False

    def values(self, path: str) -> list[tuple[int, Any]]:
        """Returns the value of a field in each layer that has it, with the number of the layer."""
        places = [(i, layer, _place(layer, path)) for i, layer in enumerate(self.layers)]
        return [(i, layer.get_in(place)) for i, layer, place in places if place is not None]

    def get(self, path: str, missing: Any = None) -> Any:
        """Returns the value of a field, the same in all layers that have it; `missing` if none does."""
        if not path.startswith(_LAYER):
            place = _place(self.model, f"model.{path}")
            return missing if place is None else self.model.get_in(place)
        found = self.values(path)
        others = [i for i, value in found if value != found[0][1]]
        if others:
            raise ConfigError(f"layers {found[0][0]} and {others[0]} differ in {path.removeprefix(_LAYER)}")
        return found[0][1] if found else missing


def _place(part: Any, path: str) -> str | None:
    """Returns a path without what it says of classes, from the part on; None if the part does not have it."""
    names: list[str] = []
    for step in path.split(".")[1:]:
        name, _, kind = step.partition(":")
        if not isinstance(part, ConfigBase) or name not in fields_of(part):
            return None
        part = getattr(part, name)
        names.append(name)
        if kind and kind != type(part).__qualname__.partition(".")[0]:
            return None
    return ".".join(names)
