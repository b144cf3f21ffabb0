# SPDX-License-Identifier: Apache-2.0
"""Layers apart: a model whose repeated layers have arrays of their own, instead of entries of stacked ones.

A loop over stacked layers is compiled once, but on a CPU each round copies the weights of its layer before it
multiplies by them, which for a few tokens takes as long as the product. Apart, nothing is copied.
"""

from collections.abc import Mapping
from typing import Any

import jax

from dovetail.config import fields_of
from dovetail.module import Module, abstract, abstract_run_state, merged
from dovetail.nn import Layer, Sequence, layers_of
from dovetail.optim import by_path


def layers_apart(cfg: Module.Config) -> Any:
    """Returns the config of the same model in whose stacks each layer is by itself."""
    return cfg.set(**{
        name: Sequence.Config(layers=tuple(place.layer for place in layers_of(stack)))
        for name, stack in _stacks(cfg).items()
    })  # fmt: skip


def params_apart(cfg: Module.Config, params: Any, model: Module) -> Any:
    """Returns the parameters, and state of the run, of a model for that of `layers_apart`.

    Args:
        cfg: of the model that `params` belong to.
        model: the one with layers apart.
    """
    old, moved = by_path(params), dict[str, tuple[str, tuple[int, ...]]]()
    for name, stack in _stacks(cfg).items():
        for number, place in enumerate(layers_of(stack, name)):
            for path in old:
                if path.startswith(f"{place.path}."):
                    moved[f"{name}.layers[{number}]{path.removeprefix(place.path)}"] = (path, place.entry)

    def leaf(path: str) -> Any:
        source, entry = moved.get(path, (path, ()))
        return old[source][entry] if entry else old[source]

    tree = merged(abstract(model), abstract_run_state(model))
    return jax.tree.unflatten(jax.tree.structure(tree), [leaf(path) for path in by_path(tree)])


def _stacks(cfg: Module.Config) -> Mapping[str, Layer.Config]:
    """Returns the stacks of layers that a model has, by name."""
    return {name: value for name in fields_of(cfg) if isinstance(value := getattr(cfg, name), Layer.Config)}
